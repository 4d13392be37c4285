//! `gmon push`, against a server of these tests, which checks requests as Pyroscope's documentation has them: POST /ingest,
//! the query `name`, `from` and `until`, and a form with the fields `profile` and `sample_type_config`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use gmon_run::Recording;
use gprofinject_skip as skip;

use crate::example::example;
use crate::support::{self, Folder};

/// What the server does with a connection.
#[derive(Clone, Copy)]
enum Answer {
    /// A status with a text.
    Status(u16, &'static str),
    /// 429, with the header `Retry-After`.
    Later(&'static str),
    /// 307, with the header `Location`.
    Redirect(&'static str),
    /// 200, some bytes at a time.
    Slow(Duration),
    /// Nothing, for as long as the client waits.
    Silence,
    /// The connection is closed before there is an answer.
    Close,
}

/// A request as it arrived.
#[derive(Debug)]
struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// A part of a form.
struct Part {
    filename: String,
    bytes: Vec<u8>,
}

struct Server {
    url: String,
    requests: Receiver<Request>,
}

impl Server {
    /// Starts a server that gives these answers, one after the other.
    fn new(answers: &[Answer]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let (to, requests) = channel();
        let answers = answers.to_vec();
        thread::spawn(move || {
            for answer in answers {
                let Ok((stream, _)) = listener.accept() else { break };
                let request = read(&stream);
                // The test may have ended.
                let _ = to.send(request);
                give(stream, answer);
            }
        });
        Server { url, requests }
    }

    fn requests(&self) -> Vec<Request> {
        self.requests.try_iter().collect()
    }
}

fn give(mut stream: TcpStream, answer: Answer) {
    let head = |status: u16, more: &str, len: usize| {
        format!("HTTP/1.1 {status} Some Reason\r\n{more}Connection: close\r\nContent-Length: {len}\r\n\r\n")
    };
    match answer {
        Answer::Status(status, text) => {
            let _ = stream.write_all(format!("{}{text}", head(status, "", text.len())).as_bytes());
        }
        Answer::Later(after) => {
            let _ = stream.write_all(head(429, &format!("Retry-After: {after}\r\n"), 0).as_bytes());
        }
        Answer::Redirect(to) => {
            let _ = stream.write_all(head(307, &format!("Location: {to}\r\n"), 0).as_bytes());
        }
        Answer::Slow(pause) => {
            for byte in head(200, "", 0).as_bytes().chunks(16) {
                thread::sleep(pause);
                if stream.write_all(byte).is_err() {
                    return;
                }
            }
        }
        Answer::Silence => {
            // Until the client has closed its end.
            let _ = stream.read(&mut [0]);
        }
        Answer::Close => {}
    }
}

/// Reads a request as RFC 9112 has it.
fn read(stream: &TcpStream) -> Request {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut next = || {
        line.clear();
        reader.read_line(&mut line).expect("a line");
        assert!(line.ends_with("\r\n"), "{line:?}");
        line.trim_end().to_owned()
    };
    let first = next();
    let words: Vec<&str> = first.split(' ').collect();
    assert_eq!((words.len(), words[2]), (3, "HTTP/1.1"), "{first}");
    let (path, query) = words[1].split_once('?').expect("a query");
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').expect("key=value");
        (decoded(key), decoded(value))
    };
    let query = query.split('&').map(pair).collect();
    let mut headers = BTreeMap::new();
    loop {
        let line = next();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').expect("a header");
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers["content-length"].parse().expect("a length");
    let mut body = vec![0; len];
    reader.read_exact(&mut body).expect("the body");
    Request { method: words[0].to_owned(), path: path.to_owned(), query, headers, body }
}

/// Decodes the percent-encoding of RFC 3986. The characters that it reserves must not occur.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next(), rest.next()].map(|digit| digit.expect("two digits"));
            let digits = std::str::from_utf8(&digits).expect("digits");
            bytes.push(u8::from_str_radix(digits, 16).expect("a number"));
        } else {
            assert!(byte.is_ascii_alphanumeric() || b"-._~".contains(&byte), "{text}");
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// Takes a form apart as RFC 7578 and RFC 2046 have it.
fn form(request: &Request) -> BTreeMap<String, Part> {
    let kind = &request.headers["content-type"];
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").expect("a form");
    let mut parts = BTreeMap::new();
    let mut rest = request.body.strip_prefix(format!("--{boundary}").as_bytes()).expect("the first boundary");
    while rest != b"--\r\n" {
        rest = rest.strip_prefix(b"\r\n").expect("the end of a line");
        let delimiter = format!("\r\n--{boundary}");
        let end = find(rest, delimiter.as_bytes());
        let (part, after) = (&rest[..end], &rest[end + delimiter.len()..]);
        let head_len = find(part, b"\r\n\r\n");
        let head = std::str::from_utf8(&part[..head_len]).expect("headers");
        let disposition = head.lines().find_map(|line| line.strip_prefix("Content-Disposition: form-data; "));
        let quoted = |key: &str| {
            let value = disposition.and_then(|text| text.split(&format!("{key}=\"")).nth(1));
            value.and_then(|value| value.split('"').next()).expect(key).to_owned()
        };
        let part = Part { filename: quoted("filename"), bytes: part[head_len + 4..].to_vec() };
        assert!(parts.insert(quoted("name"), part).is_none(), "a field twice");
        rest = after;
    }
    parts
}

fn find(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).expect("something in a form")
}

fn push(folder: &Folder, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    command.arg("push").args(args).current_dir(&folder.0);
    let names = [
        "GMON_PUSH_USER",
        "GMON_PUSH_PASSWORD",
        "GMON_PUSH_TOKEN",
        "SSL_CERT_FILE",
        "ALL_PROXY",
        "HTTPS_PROXY",
        "HTTP_PROXY",
    ];
    for name in names {
        command.env_remove(name);
    }
    command.output().expect("gmon runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder(name: &str) -> Folder {
    let folder = Folder::new(&format!("push-{name}"));
    folder.write("gmon.pb.gz", &example(true).write());
    folder
}

/// Checks the parts of a request that are always the same, and returns the profile in it.
fn profile(request: &Request) -> Vec<u8> {
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/ingest"));
    // With `format`, Pyroscope would take the form for a profile.
    let keys: Vec<&str> = request.query.keys().map(String::as_str).collect();
    assert_eq!(keys, ["from", "name", "spyName", "until"]);
    let measured = example(true);
    let number = |key: &str| request.query[key].parse::<u64>().expect("UNIX time");
    assert_eq!(number("from"), measured.start_unix_ns / 1_000_000_000);
    assert_eq!(number("until"), (measured.start_unix_ns + measured.duration_ns).div_ceil(1_000_000_000));
    let mut parts = form(request);
    let config = parts.remove("sample_type_config").expect("the types of values");
    let config: serde_json::Value = serde_json::from_slice(&config.bytes).expect("JSON");
    for (name, units, display) in
        [("calls", "objects", "calls"), ("time", "samples", "time"), ("samples", "samples", "cpu_samples")]
    {
        let value = &config[name];
        assert_eq!((value["units"].as_str(), value["display-name"].as_str()), (Some(units), Some(display)));
        assert_eq!(value["aggregation"], "sum");
        assert!(value["sampled"].is_boolean());
    }
    let profile = parts.remove("profile").expect("the profile");
    assert!(parts.is_empty());
    assert!(profile.filename.ends_with(".pprof") && profile.bytes.starts_with(b"\x1f\x8b"));
    assert_eq!(Recording::read(&profile.bytes).expect("pprof"), measured);
    profile.bytes
}

#[test]
fn a_profile_arrives() {
    let folder = folder("arrives");
    let server = Server::new(&[Answer::Status(200, ""); 3]);
    let output = push(&folder, &[&server.url]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(text(&output.stdout).ends_with(" bytes sent as prog{}\n"), "{}", text(&output.stdout));
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].query["name"], "prog{}");
    assert!(!requests[0].headers.contains_key("authorization"));
    let sent = profile(&requests[0]);

    // Several files, with the rank of each and with labels; of two with the same key, the last one counts.
    folder.write("gmon.rank7.pb.gz", &example(true).write());
    let url = format!("{}/", server.url);
    let args = [
        "--name",
        "my.app",
        "-l",
        "env=a b",
        "--label",
        "region=\u{fc}",
        "--label",
        "env=x",
        "--tenant",
        "t1",
    ];
    let output = push(&folder, &[&args[..], &[&url, "gmon.pb.gz", "gmon.rank7.pb.gz"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let requests = server.requests();
    let names: Vec<_> = requests.iter().map(|request| request.query["name"].as_str()).collect();
    assert_eq!(names, ["my.app{env=x,region=\u{fc}}", "my.app{env=x,rank=7,region=\u{fc}}"]);
    assert_eq!(requests[1].headers["x-scope-orgid"], "t1");

    // Another reader of pprof sees the names of the source.
    if !skip::have("go") {
        return skip::skipped("a_profile_arrives", "no go");
    }
    let file = folder.write("sent.pb.gz", &sent);
    let mut pprof = Command::new("go");
    pprof
        .args(["tool", "pprof", "-symbolize=none", "-sample_index=calls", "-top"])
        .arg(file)
        .env("HOME", &folder.0);
    let top = text(&pprof.output().expect("go runs").stdout);
    assert!(top.contains("Type: calls") && top.contains("  parse(int)"), "{top}");
}

#[test]
fn faults_that_pass() {
    let folder = folder("pass");
    let passing = [
        Answer::Status(500, "busy"),
        Answer::Status(503, ""),
        Answer::Status(408, ""),
        Answer::Status(429, "slower"),
        Answer::Close,
    ];
    for first in passing {
        let server = Server::new(&[first, Answer::Status(200, "")]);
        let output = push(&folder, &[&server.url]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("attempt 2 of 5 in "), "{said}");
        let requests = server.requests();
        assert_eq!(requests.len(), 2);
        assert_eq!(profile(&requests[0]), profile(&requests[1]));
    }
    // The server says when it is to be asked again. What is no number of seconds is ignored.
    for (after, least) in [("2", 2.0), ("Wed, 21 Oct 2037 07:28:00 GMT", 0.0), ("-1", 0.0)] {
        let server = Server::new(&[Answer::Later(after), Answer::Status(200, "")]);
        let start = Instant::now();
        let output = push(&folder, &[&server.url]);
        let took = start.elapsed().as_secs_f64();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(took >= least && took < 20.0, "{after}: {took}");
    }
    let server = Server::new(&[Answer::Status(502, "bad \x1b[31mgateway"); 3]);
    let output = push(&folder, &["--retries", "1", &server.url]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), server.requests().len()), (Some(2), 2), "{said}");
    let last = said.lines().last().expect("a message");
    assert!(last.starts_with("gmon: gmon.pb.gz: given up after 2 attempts: http://127.0.0.1:"), "{said}");
    assert!(last.ends_with("/ingest answers 502 Bad Gateway: bad \\u{1b}[31mgateway"), "{said}");
}

#[test]
fn faults_that_stay() {
    let folder = folder("stay");
    for (answer, message) in [
        (Answer::Status(400, "name: no such thing"), "/ingest answers 400 Bad Request: name: no such thing"),
        (Answer::Status(401, ""), "401 Unauthorized (see --token-file and --user)"),
        (Answer::Status(404, ""), "404 Not Found (is this a server that takes profiles?)"),
        (Answer::Status(413, ""), "413 Payload Too Large (a profile without call paths is smaller)"),
        (Answer::Status(422, "old"), "422 Unprocessable Entity: old"),
        (Answer::Redirect("https://elsewhere/"), "redirects to https://elsewhere/ (307 Temporary Redirect)"),
    ] {
        let server = Server::new(&[answer, Answer::Status(200, "")]);
        let output = push(&folder, &[&server.url]);
        let said = text(&output.stderr);
        assert_eq!(
            (output.status.code(), server.requests().len(), said.lines().count()),
            (Some(2), 1, 1),
            "{said}"
        );
        assert!(said.contains(message), "{said}");
    }
    // Of several files, none is sent after one that was refused.
    folder.write("b.pb.gz", &example(true).write());
    let server = Server::new(&[Answer::Status(400, ""), Answer::Status(200, "")]);
    let output = push(&folder, &[&server.url, "b.pb.gz", "gmon.pb.gz"]);
    assert_eq!((output.status.code(), server.requests().len()), (Some(2), 1));
    assert!(text(&output.stderr).starts_with("gmon: b.pb.gz: "));
}

#[test]
fn a_server_that_does_not_answer() {
    let folder = folder("silent");
    let begin = Instant::now();
    let server = Server::new(&[Answer::Silence; 2]);
    let output = push(&folder, &["--timeout", "0.3", "--retries", "1", &server.url]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), server.requests().len()), (Some(2), 2), "{said}");
    assert!(
        said.contains("given up after 2 attempts") && said.contains("no answer in time (--timeout)"),
        "{said}"
    );
    assert!(begin.elapsed() < Duration::from_secs(20), "two attempts of 0.3 s");

    // One that is slow, but fast enough; and one that is too slow, though there is always something to read.
    let server = Server::new(&[Answer::Slow(Duration::from_millis(100))]);
    assert_eq!(push(&folder, &["--timeout", "20", &server.url]).status.code(), Some(0));
    let server = Server::new(&[Answer::Slow(Duration::from_millis(200))]);
    let output = push(&folder, &["--timeout", "0.5", "--retries", "0", &server.url]);
    assert!(text(&output.stderr).contains("no answer in time"), "{}", text(&output.stderr));

    // A port at which nobody listens.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let output = push(&folder, &["--retries", "1", &format!("http://{port}")]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("given up after 2 attempts") && said.contains("refused"), "{said}");
}

#[test]
fn secrets() {
    let folder = folder("secrets");
    folder.write("token", b"t0ken\n");
    folder.write("password", b"open sesame\r\n");
    let server = Server::new(&[Answer::Status(200, ""); 4]);
    let sent = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
        command
            .arg("push")
            .args(args)
            .arg(&server.url)
            .current_dir(&folder.0)
            .envs(variables.iter().copied());
        let output = command.output().expect("gmon runs");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        server.requests().pop().expect("a request").headers["authorization"].clone()
    };
    // RFC 7617's example.
    let basic = "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==";
    assert_eq!(sent(&["--user", "Aladdin", "--password-file", "password"], &[]), basic);
    let variables = [("GMON_PUSH_USER", "Aladdin"), ("GMON_PUSH_PASSWORD", "open sesame")];
    assert_eq!(sent(&[], &variables), basic);
    assert_eq!(sent(&["--token-file", "token"], &[]), "Bearer t0ken");
    assert_eq!(sent(&[], &[("GMON_PUSH_TOKEN", "from the environment")]), "Bearer from the environment");

    folder.write("lines", b"two\nlines\n");
    folder.write("nothing", b"\n");
    for (args, message) in [
        (&["--user", "u"][..], "--user needs a password"),
        (&["--token-file", "missing"], "missing: No such file"),
        (&["--token-file", "lines"], "lines: one line of text"),
        (&["--token-file", "nothing"], "nothing: one line of text"),
        (&["--token-file", "/dev/zero"], "/dev/zero: one line of text"),
        (&["--user", "a:b", "--password-file", "token"], "--user: a name without"),
        (&["--user", "u", "--token-file", "token"], "cannot be used with"),
    ] {
        let output = push(&folder, &[args, &["http://127.0.0.1:1"]].concat());
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(message), "{args:?}: {said}");
        assert!(!said.contains("t0ken"), "{said}");
    }
    assert!(server.requests().is_empty());
}

#[test]
fn files_that_are_none() {
    let folder = folder("none");
    folder.write("gmon.out", b"gmon\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    folder.write("text", b"some text");
    folder.write("damaged", &example(true).write()[..100]);
    for (file, message) in [
        ("gmon.out", "gmon.out: a gmon.out file, and the server takes profiles in pprof's format"),
        ("text", "text: no profile in pprof's format"),
        ("damaged", "damaged: damaged"),
        ("missing", "missing: No such file"),
    ] {
        let output = push(&folder, &["http://127.0.0.1:1", file]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    for url in ["localhost:4040", "ftp://x", "http://user:pass@h"] {
        let output = push(&folder, &[url]);
        assert_eq!(output.status.code(), Some(2));
        assert!(!text(&output.stderr).contains("pass@"), "{}", text(&output.stderr));
    }
}

/// A server of TLS with a certificate of its own, by which Python's reader of forms sees what arrives.
#[test]
fn over_tls() {
    let folder = folder("tls");
    for tool in ["openssl", "python3"] {
        if !skip::have(tool) {
            return skip::skipped("over_tls", &format!("no {tool}"));
        }
    }
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    openssl.args([
        "-addext",
        "subjectAltName=DNS:localhost",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]);
    openssl.args(["-keyout", "key.pem", "-out", "cert.pem"]);
    support::run(openssl.current_dir(&folder.0));
    let script = "\
import email, http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        head = b'Content-Type: ' + self.headers['Content-Type'].encode() + b'\\r\\n\\r\\n'
        parts = email.message_from_bytes(head + body).get_payload()
        names = [part.get_param('name', header='content-disposition') for part in parts]
        open('sent.pb.gz', 'wb').write(parts[0].get_payload(decode=True))
        open('names', 'w').write(' '.join(names))
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('cert.pem', 'key.pem')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";
    let mut python = Command::new("python3");
    python.args(["-c", script]).current_dir(&folder.0).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = python.spawn().expect("python3 runs");
    let mut port = String::new();
    BufReader::new(server.stdout.as_mut().expect("a pipe")).read_line(&mut port).expect("a port");
    let url = format!("https://localhost:{}", port.trim());
    let trusted = push(&folder, &["--ca-file", "cert.pem", &url]);
    let unknown = push(&folder, &[&url]);
    let wrong_name = push(&folder, &["--ca-file", "cert.pem", &url.replace("localhost", "127.0.0.1")]);
    let no_certificates = push(&folder, &["--ca-file", "key.pem", &url]);
    server.kill().expect("the server runs");
    server.wait().expect("the server ends");
    assert_eq!(trusted.status.code(), Some(0), "{}", text(&trusted.stderr));
    let sent = std::fs::read(folder.file("sent.pb.gz")).expect("what was sent");
    assert_eq!(Recording::read(&sent).expect("pprof"), example(true));
    assert_eq!(std::fs::read_to_string(folder.file("names")).expect("names"), "profile sample_type_config");
    for (output, message) in
        [(unknown, "UnknownIssuer"), (wrong_name, "127.0.0.1"), (no_certificates, "key.pem: no certificate")]
    {
        let said = text(&output.stderr);
        // A certificate that is not good now will not be good in a second.
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(message), "{said}");
    }
}
