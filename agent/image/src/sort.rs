//! Sorting by addresses.

/// The number of bits of the key that one pass examines.
const DIGIT: u32 = 11;
const DIGITS: usize = 1 << DIGIT;

/// Sorts items by a key; items with the same key keep their order. A program's addresses are close together,
/// so two or three passes are enough, which is several times faster than comparing. The items themselves are
/// moved once.
pub fn by_key<T: Copy>(items: &mut Vec<T>, key: impl Fn(&T) -> u64) {
    if items.is_sorted_by_key(&key) {
        return;
    }
    let least = items.iter().map(&key).min().unwrap_or(0);
    let most = items.iter().map(&key).max().unwrap_or(0) - least;
    let mut order: Vec<(u64, usize)> = items.iter().map(|item| key(item) - least).zip(0..).collect();
    let mut sorted = order.clone();
    for shift in (0..u64::BITS - most.leading_zeros()).step_by(DIGIT as usize) {
        let digit = |key: u64| (key >> shift) as usize % DIGITS;
        let mut places = [0; DIGITS];
        for &(key, _) in &order {
            places[digit(key)] += 1;
        }
        let mut next = 0;
        for place in &mut places {
            next += std::mem::replace(place, next);
        }
        for &(key, index) in &order {
            let place = &mut places[digit(key)];
            sorted[*place] = (key, index);
            *place += 1;
        }
        std::mem::swap(&mut order, &mut sorted);
    }
    *items = order.iter().map(|&(_, index)| items[index]).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_as_by_comparing() {
        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            seed >> 33
        };
        for (count, spread, base) in [(0, 1, 0), (1, 1, 7), (1000, 10, 5), (5000, 1 << 24, 0x40_0000)] {
            let mut items: Vec<(u64, usize)> = (0..count).map(|n| (base + random() % spread, n)).collect();
            items.extend([(u64::MAX, 0), (0, 1)].iter().filter(|_| count == 1000));
            let mut expected = items.clone();
            expected.sort_by_key(|item| item.0);
            by_key(&mut items, |item| item.0);
            assert_eq!(items, expected);
        }
    }
}
