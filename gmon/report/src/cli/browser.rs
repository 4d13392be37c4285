//! Opens a file in the user's browser.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What opens files if the user has named no browser.
const OPENER: &str = "xdg-open";
/// How long a command may take to say that it cannot open the file.
const PATIENCE: Duration = Duration::from_millis(700);

/// Opens a file with the commands of `$BROWSER`, of which the first that works is used, or else with xdg-open. Under sudo, the command runs
/// as the user who called sudo.
///
/// Returns why the file is not open, in words for the user, or `None` if it is.
pub(crate) fn open(path: &Path) -> Option<String> {
    let user = caller();
    if user.is_some() && !is_readable_by_all(path) {
        return Some("only root may read it, so it is not opened".to_owned());
    }
    let named = std::env::var_os("BROWSER").filter(|named| !named.is_empty());
    let commands: Vec<Vec<OsString>> = match &named {
        Some(named) => named.as_bytes().split(|&byte| byte == b':').map(words).collect(),
        None => vec![vec![OPENER.into()]],
    };
    let mut why = "no browser is installed: neither $BROWSER nor xdg-open is there".to_owned();
    for mut words in commands.into_iter().filter(|words| !words.is_empty()) {
        place(&mut words, path);
        let name = words[0].display().to_string();
        match start(&words, user.as_ref()) {
            Ok(true) => return None,
            Ok(false) => why = format!("{name} could not open it"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => {}
            Err(error) => why = format!("{name}: {error}"),
        }
    }
    Some(why)
}

/// Returns the words of a command of `$BROWSER`.
fn words(command: &[u8]) -> Vec<OsString> {
    let words = command.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.map(|word| OsStr::from_bytes(word).to_owned()).collect()
}

/// Sets the path in place of `%s`, or as the last word.
fn place(words: &mut Vec<OsString>, path: &Path) {
    let mut is_placed = false;
    for word in words.iter_mut().skip(1) {
        let bytes = word.as_bytes();
        if let Some(at) = bytes.windows(2).position(|two| two == b"%s") {
            let parts = [&bytes[..at], path.as_os_str().as_bytes(), &bytes[at + 2..]];
            *word = OsString::from_vec(parts.concat());
            is_placed = true;
        }
    }
    if !is_placed {
        words.push(path.into());
    }
}

/// Starts a command. Returns whether it runs or has succeeded.
fn start(words: &[OsString], user: Option<&Caller>) -> std::io::Result<bool> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // What the terminal sends to this command's group is not for the browser.
    command.process_group(0);
    if let Some(Caller { uid, gid, home }) = user {
        // Without root's supplementary groups, which the standard library removes.
        command.gid(*gid).uid(*uid).env("HOME", home);
        let runtime = PathBuf::from(format!("/run/user/{uid}"));
        if runtime.is_dir() {
            command.env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={}", runtime.join("bus").display()));
            command.env("XDG_RUNTIME_DIR", runtime);
        }
    }
    let mut child = command.spawn()?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}

/// The user who has called sudo.
struct Caller {
    uid: u32,
    gid: u32,
    home: PathBuf,
}

/// Returns the user who has called sudo, if this is root by sudo.
fn caller() -> Option<Caller> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok().filter(|&number| number > 0);
    let (uid, gid) = (number("SUDO_UID")?, number("SUDO_GID")?);
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let home = users.lines().find_map(|line| home_in(line, uid)).unwrap_or_else(|| "/".to_owned());
    Some(Caller { uid, gid, home: home.into() })
}

/// Returns the home folder in a line of /etc/passwd, if that is of the user with this number.
fn home_in(line: &str, uid: u32) -> Option<String> {
    let fields: Vec<&str> = line.split(':').collect();
    (fields.get(2)?.parse() == Ok(uid)).then(|| fields.get(5).map(|&home| home.to_owned()))?
}

fn is_readable_by_all(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o004 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_browser() {
        for (command, expected) in [
            ("firefox", &["firefox", "/a b"][..]),
            ("w3m  -o x", &["w3m", "-o", "x", "/a b"]),
            ("sh -c open=%s;", &["sh", "-c", "open=/a b;"]),
        ] {
            let mut found = words(command.as_bytes());
            place(&mut found, Path::new("/a b"));
            assert_eq!(found, expected, "{command}");
        }
        assert_eq!(home_in("me:x:1000:1000:,,,:/home/me:/bin/sh", 1000).as_deref(), Some("/home/me"));
        assert_eq!(home_in("me:x:1000:1000:,,,:/home/me:/bin/sh", 100), None);
        assert_eq!(home_in("broken", 0), None);
    }
}
