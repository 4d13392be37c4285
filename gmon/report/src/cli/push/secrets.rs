//! What a server may want to know of the user. It comes from files or variables, because other users can see arguments.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cli::push_args::PushArgs;

/// The size in bytes above which a file is no password and no token.
const LONGEST: u64 = 64 << 10;

/// The variables with a password and with a token.
const PASSWORD: &str = "GMON_PUSH_PASSWORD";
const TOKEN: &str = "GMON_PUSH_TOKEN";

/// Returns the value of the header `Authorization`, if there is any.
///
/// # Errors
/// A file cannot be read, or something is missing.
pub(super) fn authorization(args: &PushArgs) -> Result<Option<String>> {
    if let Some(user) = args.user.as_deref().filter(|user| !user.is_empty()) {
        if user.contains(':') || user.chars().any(char::is_control) {
            bail!("--user: a name without `:` and control characters is expected");
        }
        let password = secret(args.password_file.as_deref(), PASSWORD)?;
        let Some(password) = password else {
            bail!("--user needs a password, in a file that --password-file names or in ${PASSWORD}");
        };
        return Ok(Some(format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))));
    }
    Ok(secret(args.token_file.as_deref(), TOKEN)?.map(|token| format!("Bearer {token}")))
}

/// Returns the text of a file, or of a variable if there is no file, without the end of the line.
fn secret(file: Option<&Path>, variable: &str) -> Result<Option<String>> {
    let (text, whence) = match file {
        Some(file) => {
            let mut text = String::new();
            let read = File::open(file).and_then(|opened| opened.take(LONGEST + 1).read_to_string(&mut text));
            read.with_context(|| file.display().to_string())?;
            (text, file.display().to_string())
        }
        None => match std::env::var(variable) {
            Ok(text) if !text.is_empty() => (text, format!("${variable}")),
            Err(std::env::VarError::NotUnicode(_)) => bail!("${variable}: no text"),
            _ => return Ok(None),
        },
    };
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() || secret.len() as u64 > LONGEST || secret.chars().any(char::is_control) {
        bail!("{whence}: one line of text is expected");
    }
    Ok(Some(secret.to_owned()))
}

/// Returns bytes in base64, with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = bytes.chunks(3).flat_map(|chunk| {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        [18, 12, 6, 0].into_iter().enumerate().map(move |(index, shift)| {
            if index > chunk.len() { '=' } else { char::from(DIGITS[(group >> shift & 63) as usize]) }
        })
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of RFC 4648, and the example of RFC 7617.
    #[test]
    fn base64_of_the_rfcs() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
            ("Aladdin:open sesame", "QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            ("\u{ff}\u{fe}?>", "w7/Dvj8+"),
        ] {
            assert_eq!(base64(text.as_bytes()), expected, "{text}");
        }
    }
}
