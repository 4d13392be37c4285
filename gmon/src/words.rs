//! Phrases for messages.

/// Returns a number of things as people say it: `1 call`, `0 calls`, `2 calls`. The phrases may be longer
/// than a noun (`1 process still runs`).
pub fn counted(number: impl TryInto<u64>, one: &str, many: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_not_many() {
        let calls = |number: u64| counted(number, "call was lost", "calls were lost");
        let said = [0, 1, 2, u64::MAX].map(calls);
        assert_eq!(said[..3], ["0 calls were lost", "1 call was lost", "2 calls were lost"]);
        assert!(said[3].ends_with("calls were lost"));
    }
}
