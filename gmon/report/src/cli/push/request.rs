//! What is sent: Pyroscope's `POST /ingest` with a profile in pprof's format in a form.
//!
//! The query names the application with its labels, and the time of the profile. The form has the profile in a field
//! `profile`, and in a field `sample_type_config` what the values of its samples are, because they are not those of Go.
//! (Pyroscope's server takes the body for the profile itself if the query has `format=pprof`, so it has not.)

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use gmon_run::Summary;
use serde_json::{Map, Value, json};

/// A profile to be sent.
pub(super) struct Upload {
    /// The application and its labels: `app{key=value}`.
    pub(super) name: String,
    /// The bytes of the profile.
    pub(super) profile: Vec<u8>,
    pub(super) summary: Summary,
}

/// Whether a character may be part of an application's name.
pub(super) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-./".contains(c)
}

/// Checks an application's name.
pub(super) fn application(name: &str) -> Result<String> {
    if name.is_empty() || !name.chars().all(is_of_name) {
        bail!("a name consists of letters, digits and _ - . /; labels are given by --label KEY=VALUE");
    }
    Ok(name.to_owned())
}

/// Returns an application's name with labels. Of several with the same key, the last one counts.
pub(super) fn name(application: &str, labels: impl Iterator<Item = (String, String)>) -> String {
    let labels: std::collections::BTreeMap<String, String> = labels.collect();
    let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{application}{{{}}}", labels.join(","))
}

impl Upload {
    /// Returns the query of the URL, with `?`.
    pub(super) fn query(&self) -> String {
        /// Nanoseconds in a second.
        const SECOND: u64 = 1_000_000_000;
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let (from, until) = match self.summary.start_unix_ns {
            0 => (now(), now() + 1),
            start => {
                let end = start.saturating_add(self.summary.duration_ns).div_ceil(SECOND);
                (start / SECOND, end.max(start / SECOND + 1))
            }
        };
        let name = percent_encoded(&self.name);
        format!("?name={name}&from={from}&until={until}&spyName=gprofinject")
    }

    /// Returns the value of the header `Content-Type`, and the body.
    pub(super) fn form(&self) -> (String, Vec<u8>) {
        let config = self.sample_types().to_string();
        let boundary = boundary(&[&self.profile, config.as_bytes()]);
        let mut body = Vec::with_capacity(self.profile.len() + config.len() + 512);
        for (field, file, kind, bytes) in [
            ("profile", "profile.pprof", "application/octet-stream", self.profile.as_slice()),
            ("sample_type_config", "sample_type_config.json", "application/json", config.as_bytes()),
        ] {
            let head = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{file}\"\r\n\
                 Content-Type: {kind}\r\n\r\n"
            );
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(bytes);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        (format!("multipart/form-data; boundary={boundary}"), body)
    }

    /// Returns Pyroscope's description of the values: `samples` are samples of CPU time, by whose display name the server
    /// recognises profiles of CPU time, and everything else is added up as it is.
    fn sample_types(&self) -> Value {
        let mut config = Map::new();
        for (name, unit) in &self.summary.values {
            let (units, display, sampled) = match (name.as_str(), unit.as_str()) {
                ("cpu" | "samples", _) => ("samples", "cpu_samples", true),
                (name, "nanoseconds") => ("samples", name, false),
                (name, "bytes") => ("bytes", name, false),
                (name, _) => ("objects", name, false),
            };
            let value =
                json!({"units": units, "display-name": display, "aggregation": "sum", "sampled": sampled});
            config.insert(name.clone(), value);
        }
        Value::Object(config)
    }
}

/// Returns a line that occurs in none of the parts.
fn boundary(parts: &[&[u8]]) -> String {
    let mut number = 0_u32;
    loop {
        let boundary = format!("gprofinject-{number:08x}");
        let line = format!("--{boundary}");
        let occurs = |part: &&[u8]| part.windows(line.len()).any(|window| window == line.as_bytes());
        if !parts.iter().any(occurs) {
            return boundary;
        }
        number = number.wrapping_add(1);
    }
}

/// Returns a text as it is written in the query of a URL (RFC 3986).
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a text does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(profile: &[u8]) -> Upload {
        let summary = Summary {
            values: vec![("calls".to_owned(), "count".to_owned())],
            start_unix_ns: 1_700_000_000_900_000_000,
            duration_ns: 200_000_000,
            ..Summary::default()
        };
        let labels = [("b", "1"), ("a", "x y"), ("b", "2")];
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        Upload { name: name("app", labels), profile: profile.to_vec(), summary }
    }

    #[test]
    fn queries() {
        let mut upload = upload(b"");
        assert_eq!(
            upload.query(),
            "?name=app%7Ba%3Dx%20y%2Cb%3D2%7D&from=1700000000&until=1700000002&spyName=gprofinject"
        );
        upload.summary.duration_ns = 0;
        assert!(upload.query().contains("&from=1700000000&until=1700000001&"));
        upload.summary.duration_ns = u64::MAX;
        assert!(upload.query().contains("&until=18446744074&"));
    }

    #[test]
    fn a_boundary_is_in_no_part() {
        let profile = b"x\r\n--gprofinject-00000000\r\n--gprofinject-00000001--";
        let (kind, body) = upload(profile).form();
        assert_eq!(kind, "multipart/form-data; boundary=gprofinject-00000002");
        let line = b"--gprofinject-00000002";
        assert_eq!(body.windows(line.len()).filter(|window| window == line).count(), 3);
    }

    #[test]
    fn names_of_applications() {
        assert!(application("my-app.cpu/x_1").is_ok());
        for name in ["", "a b", "a{}", "a,b", "\u{fc}"] {
            assert!(application(name).is_err(), "{name}");
        }
    }
}
