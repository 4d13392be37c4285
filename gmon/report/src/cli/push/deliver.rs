//! The way to the server: one request at a time, again if the fault may pass.

use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ureq::http::{Response, StatusCode, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Error};

use crate::cli::push::request::Upload;
use crate::cli::push::secrets;
use crate::cli::push_args::PushArgs;
use crate::cli::text::plain;

/// The path under which Pyroscope takes profiles.
const PATH: &str = "/ingest";
/// The time before the second attempt. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How much of an answer is shown, in bytes.
const SHOWN: u64 = 500;

/// A server that takes profiles.
pub(super) struct Server {
    agent: Agent,
    /// The URL without a query.
    url: String,
    headers: Vec<(&'static str, String)>,
    attempts: u32,
}

/// Why an attempt has failed.
enum Failure {
    /// It may succeed later, and not before the time for which the server has asked.
    Passing(anyhow::Error, Option<Duration>),
    Lasting(anyhow::Error),
}

impl Server {
    /// Returns the server that the arguments name.
    ///
    /// # Errors
    /// The URL is none, or a file that is named cannot be read.
    pub(super) fn new(args: &PushArgs) -> Result<Server> {
        let url = endpoint(&args.url)?;
        let mut headers = Vec::new();
        if let Some(value) = secrets::authorization(args)? {
            headers.push(("authorization", value));
        }
        if let Some(tenant) = &args.tenant {
            headers.push(("x-scope-orgid", tenant.clone()));
        }
        let config = Agent::config_builder()
            .timeout_global(Some(args.timeout))
            // What is sent has a place to which it is sent.
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("gmon/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots(args)?).build());
        Ok(Server { agent: config.build().into(), url, headers, attempts: args.retries + 1 })
    }

    /// Sends a profile.
    ///
    /// # Errors
    /// The server does not take it, or cannot be reached.
    pub(super) fn send(&self, upload: &Upload) -> Result<()> {
        let url = format!("{}{}", self.url, upload.query());
        let (kind, body) = upload.form();
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            match self.attempt(&url, &kind, &body) {
                Ok(()) => return Ok(()),
                Err(Failure::Lasting(error)) => return Err(error),
                Err(Failure::Passing(error, _)) if attempt >= self.attempts => {
                    let tries = gmon::counted(self.attempts as usize, "attempt", "attempts");
                    return Err(error.context(format!("given up after {tries}")));
                }
                Err(Failure::Passing(error, asked)) => {
                    let time = spread(pause).max(asked.unwrap_or_default());
                    eprintln!(
                        "gmon: {error:#}; attempt {} of {} in {:.1} s",
                        attempt + 1,
                        self.attempts,
                        time.as_secs_f64()
                    );
                    thread::sleep(time);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        Ok(())
    }

    fn attempt(&self, url: &str, kind: &str, body: &[u8]) -> Result<(), Failure> {
        let mut request = self.agent.post(url).content_type(kind);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let response = request.send(body).map_err(|error| self.failure(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let asked = retry_after(&response);
        let error = self.refusal(status, response);
        // 408: the server has not received the whole request. 429: it takes no more for now.
        let passes = status.is_server_error() || [408, 429].contains(&status.as_u16());
        Err(if passes { Failure::Passing(error, asked) } else { Failure::Lasting(error) })
    }

    /// Returns what an answer says that is no success.
    fn refusal(&self, status: StatusCode, mut response: Response<Body>) -> anyhow::Error {
        let place = &self.url;
        if status.is_redirection() {
            let to = response.headers().get("location").and_then(|value| value.to_str().ok());
            let to = to.map_or_else(String::new, |to| format!(" to {}", plain(to)));
            return anyhow!("{place} redirects{to} ({status}); give that server's URL");
        }
        let mut text = Vec::new();
        // The status is what matters; the text may be missing.
        let _ = response.body_mut().as_reader().take(SHOWN).read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let text = text.trim();
        let said = if text.is_empty() { String::new() } else { format!(": {}", plain(text)) };
        let advice = match status.as_u16() {
            401 | 403 => " (see --token-file and --user)",
            404 => " (is this a server that takes profiles?)",
            413 => " (a profile without call paths is smaller)",
            _ => "",
        };
        anyhow!("{place} answers {status}{said}{advice}")
    }

    fn failure(&self, error: Error) -> Failure {
        let place = &self.url;
        let passing = |text: String| Failure::Passing(anyhow!("{place}: {text}"), None);
        let lasting = |text: String| Failure::Lasting(anyhow!("{place}: {text}"));
        match error {
            Error::Timeout(_) => passing("no answer in time (--timeout)".to_owned()),
            Error::HostNotFound => passing("no host of this name is known".to_owned()),
            Error::ConnectionFailed => passing("no connection".to_owned()),
            // An error in TLS comes as one of the connection, and stays.
            Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                lasting(format!("{error} (see --ca-file)"))
            }
            Error::Io(error) => passing(error.to_string()),
            Error::Rustls(error) => lasting(format!("{error} (see --ca-file)")),
            // The connection was closed in the middle of an answer.
            Error::Protocol(error) => passing(error.to_string()),
            other => lasting(other.to_string()),
        }
    }
}

/// Returns the time after which a server wants to be asked again, at most [`LONGEST_PAUSE`]. A date is not understood.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    let seconds = value.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// Returns the URL to which profiles are sent.
fn endpoint(url: &str) -> Result<String> {
    let shown = plain(url);
    let parsed: Uri =
        url.parse().map_err(|_| anyhow!("{shown}: not a URL, such as http://localhost:4040"))?;
    let (Some(scheme), Some(authority)) = (parsed.scheme_str(), parsed.authority()) else {
        bail!("{shown}: not a URL, such as http://localhost:4040");
    };
    if !["http", "https"].contains(&scheme) {
        bail!("{shown}: neither http nor https");
    }
    if authority.as_str().contains('@') {
        bail!("a URL with a password can be seen by other users; use --user and --password-file");
    }
    if parsed.query().is_some() {
        bail!("{shown}: without a query, please; --name and --label say what is sent");
    }
    let path = parsed.path().trim_end_matches('/');
    let path = path.strip_suffix(PATH).unwrap_or(path);
    Ok(format!("{scheme}://{authority}{path}{PATH}"))
}

/// Returns the certificates that may vouch for a server.
fn roots(args: &PushArgs) -> Result<RootCerts> {
    let variable = || std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty()).map(Into::into);
    let Some(file) = args.ca_file.clone().or_else(variable) else { return Ok(RootCerts::WebPki) };
    let bytes = read(&file).with_context(|| file.display().to_string())?;
    let items = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = items.collect();
    if certificates.is_empty() {
        bail!("{}: no certificate in it, in the form of PEM", file.display());
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

/// Reads a file of certificates, of a bounded size.
fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    const LARGEST: u64 = 64 << 20;
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns a time around this one, so that a fleet does not come back all at once.
fn spread(time: Duration) -> Duration {
    // A new hasher has a random key.
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    time.mul_f64(0.5 + random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (url, expected) in [
            ("http://localhost:4040", "http://localhost:4040/ingest"),
            ("http://localhost:4040/", "http://localhost:4040/ingest"),
            ("https://h/pyroscope/ingest", "https://h/pyroscope/ingest"),
            ("https://[::1]:4040/x/", "https://[::1]:4040/x/ingest"),
        ] {
            assert_eq!(endpoint(url).expect("a URL"), expected);
        }
        for url in [
            "",
            "localhost:4040",
            "/ingest",
            "ftp://h",
            "http://",
            "http://u:p@h",
            "http://h/?a=b",
            "http://h\n/",
        ] {
            assert!(endpoint(url).is_err(), "{url}");
        }
        let error = endpoint("http://u:secret@h").expect_err("a password").to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn pauses_differ() {
        let second = Duration::from_secs(1);
        let times: Vec<_> = (0..20).map(|_| spread(second)).collect();
        assert!(times.iter().all(|time| (0.5..=1.5).contains(&time.as_secs_f64())), "{times:?}");
        assert!(times.iter().any(|time| *time != times[0]));
    }
}
