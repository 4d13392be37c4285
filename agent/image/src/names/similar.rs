//! Names that are similar to one that does not exist, for messages.

/// The number of names that a message has.
const NEAR: usize = 5;

/// Returns the names that are similar to a name or pattern, the most similar first.
pub fn similar(patterns: &[String], names: impl Iterator<Item = String>) -> Vec<String> {
    let wanted: Vec<String> = patterns
        .iter()
        .map(|pattern| pattern.chars().filter(|c| !"*?".contains(*c)).collect::<String>().to_lowercase())
        .collect();
    let mut near: Vec<(usize, String)> = Vec::new();
    for name in names {
        let short = name.split_once('(').map_or(name.as_str(), |(short, _)| short).to_lowercase();
        if let Some(distance) = wanted.iter().filter_map(|wanted| distance(wanted, &short)).min() {
            near.push((distance, name));
        }
    }
    near.sort();
    near.dedup();
    near.into_iter().take(NEAR).map(|(_, name)| name).collect()
}

/// Returns how different two names in small letters are, or `None` if they have nothing in common: 0 if one is part
/// of the other, else the number of characters to insert, remove and replace.
fn distance(wanted: &str, name: &str) -> Option<usize> {
    if wanted.is_empty() || name.is_empty() {
        return None;
    }
    if name.contains(wanted) || (name.len() > 2 && wanted.contains(name)) {
        return Some(0);
    }
    let allowed = ((wanted.chars().count() + 1) / 3).clamp(1, 4);
    // Of a qualified name, the last component is enough.
    let last = name.rsplit("::").next().unwrap_or(name);
    [name, last].into_iter().filter_map(|name| edits(wanted, name, allowed)).min()
}

/// Returns the number of characters to insert, remove, replace or swap with their neighbour (the optimal string alignment distance) if it is
/// at most `allowed`.
fn edits(one: &str, other: &str, allowed: usize) -> Option<usize> {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > allowed {
        return None;
    }
    let mut before: Vec<usize> = (0..=other.len()).collect();
    // The row above that one.
    let mut earlier = before.clone();
    for (row, a) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, b) in other.iter().enumerate() {
            let replaced = before[column] + usize::from(a != b);
            let is_swapped = row > 0 && column > 0 && *a == other[column - 1] && one[row - 1] == *b;
            let swapped = if is_swapped { earlier[column - 1] + 1 } else { usize::MAX };
            current.push(replaced.min(swapped).min(before[column + 1] + 1).min(current[column] + 1));
        }
        (earlier, before) = (before, current);
    }
    before.last().copied().filter(|&edits| edits <= allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (wanted, name, expected) in [
            ("parse", "parse_int", Some(0)),
            ("pares", "parse", Some(2)),
            ("pars", "json::parse", Some(0)),
            ("prase_value", "json::parse_value", Some(2)),
            ("parse", "write", None),
            ("", "write", None),
        ] {
            let found = distance(wanted, name);
            assert_eq!(found.filter(|_| expected.is_some()), found, "{wanted} {name}");
            assert!(expected.is_none() == found.is_none() && found <= expected.or(found), "{wanted} {name}");
        }
        assert_eq!(edits("kitten", "sitting", 3), Some(3));
        // Two letters in the wrong order are one mistake.
        assert_eq!((edits("mian", "main", 1), edits("mian", "mine", 1)), (Some(1), None));
        assert_eq!(similar(&["mian".to_owned()], ["main", "maize"].map(str::to_owned).into_iter()), ["main"]);
        assert_eq!(edits("kitten", "sitting", 2), None);
    }
}
