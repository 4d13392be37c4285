//! The arguments of `gmon push`.

use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct PushArgs {
    /// The server, such as http://localhost:4040; /ingest is added if the URL does not end with it
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Profiles in pprof's format, as `gprofinject --times` writes them
    #[arg(value_name = "FILE", default_value = "gmon.pb.gz")]
    pub(crate) files: Vec<PathBuf>,
    /// Name of the application [default: that of the program]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Label of the profile; may be repeated. A file of a parallel job has the label `rank` in any case
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,
    /// Tenant of a server that has several (X-Scope-OrgID)
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,
    /// User for basic authentication; the password is in --password-file or $GMON_PUSH_PASSWORD
    #[arg(long, value_name = "USER", env = "GMON_PUSH_USER", hide_env_values = true)]
    pub(crate) user: Option<String>,
    /// File with the password of --user
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,
    /// File with a bearer token [default: $GMON_PUSH_TOKEN]
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    pub(crate) token_file: Option<PathBuf>,
    /// File with the certificates (PEM) that may vouch for the server [default: $SSL_CERT_FILE, or those of Mozilla]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Time for an attempt, from the look-up of the name to the end of the answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Number of further attempts if the server cannot be reached, does not answer in time, has an error of its own (5xx), or takes no more for now (429)
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) retries: u32,
}

/// Parses a label. The server would take other keys for its own, or cut the name off at some characters.
fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let begins = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !begins || !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err("a key consists of letters, digits and _, and does not begin with a digit".to_owned());
    }
    if key.starts_with("__") {
        return Err("keys that begin with __ are the server's own".to_owned());
    }
    if value.trim().is_empty() || value.contains([',', '{', '}', '=']) || value.chars().any(char::is_control)
    {
        return Err(
            "a value has at least one character, and none of , { } = and control characters".to_owned()
        );
    }
    Ok((key.to_owned(), value.trim().to_owned()))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|number| Duration::try_from_secs_f64(number).ok());
    time.filter(|time| !time.is_zero()).ok_or_else(|| "not a number of seconds above 0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        let ok = |text: &str| label(text).map(|(key, value)| format!("{key}: {value}"));
        assert_eq!(ok("region= us-west-1 ").as_deref(), Ok("region: us-west-1"));
        assert_eq!(ok("_a9=\u{fc} b/c").as_deref(), Ok("_a9: \u{fc} b/c"));
        for text in
            ["region", "=x", "9a=x", "a-b=x", "__name__=x", "a=", "a= ", "a=b,c=d", "a={}", "a=b\n", "a=b=c"]
        {
            assert!(label(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "inf", "NaN", "1e99"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
