//! The messages that come through a run's socket, and the answers.
//!
//! Every process that can reach the socket can send any bytes. A packet is parsed here, once, into a record
//! whose fields have been checked; the rest of the session never reads the bytes.

use std::fmt;
use std::path::PathBuf;

use gprofinject_abi::ask::{self, Question};
use gprofinject_abi::{PLAN_SUFFIX, REGION_SUFFIX};
use serde::{Deserialize, Serialize};
use zerocopy::FromBytes;

use crate::live::snapshot::Wants;
use crate::options::Verb;
use crate::session::label::Label;

/// A message. The kernel says who has sent it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A forked child has begun, and counts in the region file of this name. Its parent's has the other name.
    Forked(MemberName, Option<MemberName>),
    /// The process cannot follow the link to the file of this name.
    Opens(FileName),
    /// The process is about to execute the program whose file came with the packet, with this label.
    Executes(Label),
    /// The process is about to execute the program whose file came with the packet, and does not ask to be followed.
    Alone(Reason),
    /// The process has loaded a library, whose file came with the packet.
    Loaded(Question),
    /// The process will ask about the libraries whose files came with the packet.
    Ahead,
    /// A user asks for something.
    Control(Request),
}

/// Why a process does not ask that the program which it executes be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Another gprofinject profiles the program.
    Profiled,
    /// The limit of address space leaves no room.
    Limited,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Profiled => "another gprofinject profiles it",
            Reason::Limited => "its limit of address space (ulimit -v) leaves no room",
        })
    }
}

/// The name of a process's files in the run folder: ASCII letters and digits, [`ask::NAME_MAX`] of them at most.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemberName(String);

impl MemberName {
    /// Returns the name if these bytes are one.
    fn parse(bytes: &[u8]) -> Option<MemberName> {
        let is_name =
            (1..=ask::NAME_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_alphanumeric);
        is_name.then(|| MemberName(bytes.iter().copied().map(char::from).collect()))
    }

    /// The name as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a plan or of a region file in the run folder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileName(String);

impl FileName {
    /// Returns the name if these bytes are one.
    fn parse(bytes: &[u8]) -> Option<FileName> {
        let member =
            [PLAN_SUFFIX, REGION_SUFFIX].iter().find_map(|suffix| bytes.strip_suffix(suffix.as_bytes()))?;
        MemberName::parse(member)?;
        str::from_utf8(bytes).ok().map(|name| FileName(name.to_owned()))
    }

    /// The name as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What `--dump`, `--reset`, `--pause`, `--resume`, `--enable` and `--disable` ask for.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) pid: i32,
    pub(crate) verb: Verb,
    /// The absolute path for a dump. `None` means the place where the profile will be written.
    pub(crate) output: Option<PathBuf>,
    /// The functions to switch on or off, at most [`PATTERN_MAX`] bytes.
    pub(crate) pattern: Option<String>,
    /// What a live view needs.
    pub(crate) wants: Option<Wants>,
}

/// The greatest length in bytes of a pattern. A matcher takes memory in proportion to it.
pub(crate) const PATTERN_MAX: usize = 1024;

/// Why a packet is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the packet is of no known kind")]
    Kind,
    #[error("a forked child or a file has no such name")]
    Name,
    #[error("another version of gprofinject looks after this process")]
    Request,
}

impl Message {
    /// Parses a packet.
    ///
    /// # Errors
    /// The packet is not one that an agent or a gprofinject of this version sends.
    pub(crate) fn parse(packet: &[u8]) -> Result<Message, Malformed> {
        match packet.split_first() {
            Some((&ask::FORKED, names)) => {
                let mut names = names.splitn(2, |&byte| byte == ask::OF);
                let name = names.next().and_then(MemberName::parse).ok_or(Malformed::Name)?;
                let parent = names.next().map(|parent| MemberName::parse(parent).ok_or(Malformed::Name));
                Ok(Message::Forked(name, parent.transpose()?))
            }
            Some((&ask::OPENS, name)) => FileName::parse(name).map(Message::Opens).ok_or(Malformed::Name),
            Some((&ask::EXECUTES, [])) => Ok(Message::Executes(Label::default())),
            Some((&ask::EXECUTES, [ask::OF, label @ ..])) => Ok(Message::Executes(Label::parse(label))),
            Some((&ask::ALONE, &[ask::PROFILED])) => Ok(Message::Alone(Reason::Profiled)),
            Some((&ask::ALONE, &[ask::LIMITED])) => Ok(Message::Alone(Reason::Limited)),
            Some((&ask::AHEAD, [])) => Ok(Message::Ahead),
            Some((&ask::LOADED, _)) => {
                let question = Question::read_from_bytes(packet).map_err(|_| Malformed::Kind)?;
                Ok(Message::Loaded(question))
            }
            Some((&ask::CONTROL, text)) => {
                let request: Request = serde_json::from_slice(text).map_err(|_| Malformed::Request)?;
                let output_is_sound = match &request.output {
                    Some(path) => request.verb == Verb::Dump && path.is_absolute(),
                    None => true,
                };
                let has_pattern = matches!(request.verb, Verb::Enable | Verb::Disable);
                let pattern_is_sound = match &request.pattern {
                    Some(pattern) => has_pattern && pattern.len() <= PATTERN_MAX,
                    None => !has_pattern,
                };
                let wants_are_sound = request.wants.is_some() == (request.verb == Verb::Look);
                if request.pid > 0 && output_is_sound && pattern_is_sound && wants_are_sound {
                    Ok(Message::Control(request))
                } else {
                    Err(Malformed::Request)
                }
            }
            _ => Err(Malformed::Kind),
        }
    }
}

impl Request {
    /// Returns the packet that asks for this.
    ///
    /// # Errors
    /// The output's path is not UTF-8.
    pub(crate) fn packet(&self) -> serde_json::Result<Vec<u8>> {
        let text = serde_json::to_vec(self)?;
        Ok([&[ask::CONTROL], text.as_slice()].concat())
    }
}

/// The answer to a request, with text for the user.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done(String),
    /// The request could not be carried out, for this reason.
    Failed(String),
}

impl Answer {
    /// Returns the packet of this answer.
    pub(crate) fn packet(&self) -> Vec<u8> {
        // Memory can be written to.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Parses a packet. Returns `None` if it is not an answer.
    pub(crate) fn parse(packet: &[u8]) -> Option<Answer> {
        let (answer, []) = postcard::take_from_bytes(packet).ok()? else { return None };
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(verb: Verb, output: Option<&str>) -> Request {
        Request { pid: 7, verb, output: output.map(PathBuf::from), pattern: None, wants: None }
    }

    #[test]
    fn messages_are_read_back() {
        let look = Request { wants: Some(Wants::default()), ..request(Verb::Look, None) };
        let switch = Request { pattern: Some("lib*!f".into()), ..request(Verb::Disable, None) };
        for request in [request(Verb::Dump, Some("/tmp/file")), request(Verb::Pause, None), switch, look] {
            let packet = request.packet().expect("a packet");
            assert_eq!(Message::parse(&packet), Ok(Message::Control(request)));
        }
        assert_eq!(Message::parse(b"E"), Ok(Message::Executes(Label::default())));
        assert_eq!(Message::parse(b"E:label"), Ok(Message::Executes(Label::parse(b"label"))));
        assert_eq!(Message::parse(b"NP"), Ok(Message::Alone(Reason::Profiled)));
        assert_eq!(Message::parse(b"NL"), Ok(Message::Alone(Reason::Limited)));
        assert_eq!(Message::parse(b"NX"), Err(Malformed::Kind));
        let Ok(Message::Forked(name, None)) = Message::parse(b"Ff123") else { panic!("a child's name") };
        assert_eq!(name.as_str(), "f123");
        let both = Message::parse(b"Ff123:0");
        let Ok(Message::Forked(name, Some(parent))) = both else { panic!("two names") };
        assert_eq!((name.as_str(), parent.as_str()), ("f123", "0"));
        for packet in [&b"Ff123:"[..], b"Ff123:..", b"Ff123:a:b", b"Ff123/0", b"F:0"] {
            assert_eq!(Message::parse(packet), Err(Malformed::Name));
        }
        for file in ["0.region", "f12.plan"] {
            let packet = [&[ask::OPENS], file.as_bytes()].concat();
            let Ok(Message::Opens(name)) = Message::parse(&packet) else { panic!("a file's name") };
            assert_eq!(name.as_str(), file);
        }
        for answer in [Answer::Done("it is done".into()), Answer::Failed(String::new())] {
            assert_eq!(Answer::parse(&answer.packet()), Some(answer));
        }
    }

    #[test]
    fn what_nobody_sends_is_no_message() {
        for name in ["", ".", "../x", "a/b", "a\0b", "é", "x x", &"n".repeat(ask::NAME_MAX + 1)] {
            let packet = [&[ask::FORKED], name.as_bytes()].concat();
            assert_eq!(Message::parse(&packet), Err(Malformed::Name), "{name}");
            let packet = [&[ask::OPENS], name.as_bytes(), REGION_SUFFIX.as_bytes()].concat();
            assert_eq!(Message::parse(&packet), Err(Malformed::Name), "{name}");
        }
        for file in ["0", "0.so", "ask", "0.region.plan"] {
            let packet = [&[ask::OPENS], file.as_bytes()].concat();
            assert_eq!(Message::parse(&packet), Err(Malformed::Name), "{file}");
        }
        let relative = request(Verb::Dump, Some("file"));
        let of_a_pause = request(Verb::Pause, Some("/tmp/file"));
        let of_nobody = Request { pid: 0, ..request(Verb::Dump, None) };
        let of_nothing = request(Verb::Enable, None);
        let of_a_reset = Request { pattern: Some("f".into()), ..request(Verb::Reset, None) };
        let too_long = Request { pattern: Some("f".repeat(PATTERN_MAX + 1)), ..request(Verb::Disable, None) };
        for request in [relative, of_a_pause, of_nobody, of_nothing, of_a_reset, too_long] {
            let packet = request.packet().expect("a packet");
            assert_eq!(Message::parse(&packet), Err(Malformed::Request), "{request:?}");
        }
        for packet in [&b""[..], b"X", b"EE", b"\0"] {
            assert_eq!(Message::parse(packet), Err(Malformed::Kind));
        }
        let other = br#"C{"pid":7,"verb":"Dump","output":null,"more":1}"#;
        assert_eq!(Message::parse(other), Err(Malformed::Request));
        assert_eq!(Answer::parse(b""), None);
        assert_eq!(Answer::parse(b"?"), None);
    }

    /// Whatever bytes come, a parsed message has a valid name, or is a request that would be sent again with
    /// the same bytes.
    #[test]
    fn random_packets_are_parsed_or_refused() {
        let seeds = [
            b"Ff4242".to_vec(),
            b"E".to_vec(),
            b"O12.region".to_vec(),
            request(Verb::Dump, Some("/tmp/file")).packet().expect("a packet"),
            request(Verb::Reset, None).packet().expect("a packet"),
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (mut parsed, mut refused) = (0, 0);
        for _ in 0..200_000 {
            let mut packet = seeds[random(seeds.len())].clone();
            for _ in 0..=random(4) {
                let at = random(packet.len() + 1);
                match random(4) {
                    0 if at < packet.len() => packet[at] = random(256) as u8,
                    1 if at < packet.len() => drop(packet.remove(at)),
                    2 => packet.truncate(at),
                    _ => packet.insert(at, b"{}[]\",:/0-eE\\u\0\xff"[random(16)]),
                }
            }
            match Message::parse(&packet) {
                Ok(Message::Forked(name, parent)) => {
                    for name in [Some(name), parent].iter().flatten() {
                        let name = name.as_str();
                        assert!(
                            !name.is_empty() && name.len() <= ask::NAME_MAX && !name.contains(['/', '.'])
                        );
                    }
                    parsed += 1;
                }
                Ok(Message::Opens(name)) => {
                    let (member, suffix) = name.as_str().split_once('.').expect("a suffix");
                    assert!(!member.contains('/') && matches!(suffix, "plan" | "region"));
                    parsed += 1;
                }
                Ok(Message::Executes(_) | Message::Loaded(_) | Message::Ahead | Message::Alone(_)) => {
                    parsed += 1
                }
                Ok(Message::Control(request)) => {
                    assert!(request.pid > 0 && request.output.as_ref().is_none_or(|path| path.is_absolute()));
                    let again = request.packet().expect("a packet");
                    assert_eq!(Message::parse(&again), Ok(Message::Control(request)));
                    parsed += 1;
                }
                Err(_) => refused += 1,
            }
            let _ = Answer::parse(&packet);
        }
        assert!(parsed > 1000 && refused > 1000, "{parsed} {refused}");
    }
}
