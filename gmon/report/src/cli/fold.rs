//! Sums what many files say, on several processors, in the memory of a sum and a file for each of them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, anyhow};

/// What is summed. The sum may depend on the order of files, but not on how consecutive ones are grouped.
pub(crate) trait Sum: Sized + Send {
    /// Adds a file. `index` is its place among all files.
    ///
    /// # Errors
    /// The file cannot be read, or does not fit the ones before.
    fn add(&mut self, index: usize, file: &Path) -> Result<()>;

    /// Adds the sum of the files that come after those of this one.
    ///
    /// # Errors
    /// They do not fit.
    fn join(&mut self, later: Self) -> Result<()>;
}

/// Returns the number of threads that there are processors for.
pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Sums files in their order, on so many threads. The result, and an error, is the same for any number of them.
///
/// # Errors
/// The first error that summing one file after the other meets.
pub(crate) fn sum<S: Sum>(files: &[PathBuf], threads: usize, new: impl Fn() -> S + Sync) -> Result<S> {
    if let Some(parts) = parts(files, threads)
        && let Ok(sum) = side_by_side(files, &parts, &new)
    {
        return Ok(sum);
    }
    // Which file is to blame, and what for, depends on all those before it.
    let failed = AtomicBool::new(false);
    part(files, &(0..files.len()), &failed, &new)
}

/// Returns a range of files for each thread, all of about the same size in bytes. There are none if threads are of no
/// use, or if something is not a file that can be read twice.
fn parts(files: &[PathBuf], threads: usize) -> Option<Vec<Range<usize>>> {
    if threads < 2 || files.len() < 2 {
        return None;
    }
    let size = |file: &PathBuf| {
        let found = std::fs::metadata(file).ok().filter(|found| found.is_file())?;
        // Small files cost time too.
        Some(u128::from(found.len()) + 4096)
    };
    let sizes: Vec<u128> = files.iter().map(size).collect::<Option<_>>()?;
    let all: u128 = sizes.iter().sum();
    let (mut parts, mut begin, mut before) = (Vec::new(), 0, 0_u128);
    for (index, size) in sizes.iter().enumerate() {
        before += size;
        let share = all * (parts.len() as u128 + 1) / threads as u128;
        if before >= share || index + 1 == files.len() {
            parts.push(begin..index + 1);
            begin = index + 1;
        }
    }
    Some(parts)
}

fn side_by_side<S: Sum>(
    files: &[PathBuf],
    parts: &[Range<usize>],
    new: &(impl Fn() -> S + Sync),
) -> Result<S> {
    let failed = &AtomicBool::new(false);
    thread::scope(|scope| {
        let begin = |range| {
            let work = move || part(files, range, failed, new);
            // If no thread can be created, the calling one does the work.
            thread::Builder::new().spawn_scoped(scope, work).map_err(|_| work())
        };
        let begun: Vec<_> = parts.iter().map(begin).collect();
        let mut whole: Option<S> = None;
        for part in begun {
            let sum = match part {
                // A panic has already ended the process.
                Ok(thread) => thread.join().map_err(|_| anyhow!("a thread has ended early"))??,
                Err(done) => done?,
            };
            match &mut whole {
                None => whole = Some(sum),
                Some(whole) => whole.join(sum)?,
            }
        }
        Ok(whole.unwrap_or_else(new))
    })
}

/// Sums some of the files. Stops early if another part has failed.
fn part<S: Sum>(
    files: &[PathBuf],
    range: &Range<usize>,
    failed: &AtomicBool,
    new: &impl Fn() -> S,
) -> Result<S> {
    let mut sum = new();
    for index in range.clone() {
        // The flag only saves work: whoever has set it returns the error.
        if failed.load(Ordering::Relaxed) {
            return Err(anyhow!("another part has failed"));
        }
        sum.add(index, &files[index]).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of files, which must all be of one length.
    struct Names(Vec<String>);

    impl Sum for Names {
        fn add(&mut self, index: usize, file: &Path) -> Result<()> {
            let text = std::fs::read_to_string(file)?;
            if self.0.first().is_some_and(|first| first.len() != text.len() + 1) {
                return Err(anyhow!("{text} after {}", self.0[0]));
            }
            self.0.push(format!("{text}{}", index % 10));
            Ok(())
        }

        fn join(&mut self, later: Names) -> Result<()> {
            if self.0.first().map(String::len) != later.0.first().map(String::len) {
                return Err(anyhow!("not the message that a user wants"));
            }
            self.0.extend(later.0);
            Ok(())
        }
    }

    fn files(texts: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |(index, text): (usize, &&str)| {
            let path = folder.path().join(index.to_string());
            std::fs::write(&path, text).expect("a file");
            path
        };
        let files = texts.iter().enumerate().map(file).collect();
        (folder, files)
    }

    #[test]
    fn any_number_of_threads() {
        let (_folder, files) = files(&["a", "b", "c", "d", "e", "f", "g"]);
        let expected = ["a0", "b1", "c2", "d3", "e4", "f5", "g6"];
        for threads in [1, 2, 3, 7, 8, 100] {
            let sum = sum(&files, threads, || Names(Vec::new())).expect("all of one length");
            assert_eq!(sum.0, expected, "{threads} threads");
            let parts = parts(&files, threads);
            assert_eq!(parts.map_or(1, |parts| parts.len()), threads.min(files.len()));
        }
    }

    #[test]
    fn the_error_is_that_of_one_thread() {
        let (_folder, mut files) = files(&["a", "b", "c", "longer", "long"]);
        for threads in [1, 2, 3, 5] {
            let message = |files: &[PathBuf]| {
                sum(files, threads, || Names(Vec::new())).err().map(|error| error.to_string())
            };
            assert_eq!(message(&files).as_deref(), Some("longer after a0"), "{threads} threads");
        }
        files[1] = "/nowhere".into();
        assert!(sum(&files, 4, || Names(Vec::new())).is_err());
    }
}
