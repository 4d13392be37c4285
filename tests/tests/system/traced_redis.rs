//! A trace of a server under load, compared with the server's own log: MONITOR prints each command that is executed, with its client and
//! its key, in their order, and `INFO commandstats` counts them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gprofinject_skip as skip;
use gprofinject_tests::place::{self, Place};
use gprofinject_tests::traced::{Line, lines, shown};
use gprofinject_tests::run;

gprofinject_tests::trials! {
    together:
        the_commands_of_redis_are_those_that_monitor_prints;
}

/// The commands that the load consists of. The function of each is called after it: `setCommand`.
const COMMANDS: [&str; 13] =
    ["get", "hset", "incr", "lpop", "lpush", "lrange", "mset", "ping", "rpop", "rpush", "sadd", "set", "zadd"];

/// What each of the clients that work at the same time does, in the terms of redis-benchmark.
const LOAD: [&str; 13] = [
    "ping", "set", "get", "incr", "lpush", "rpush", "lpop", "rpop", "sadd", "hset", "zadd", "lrange_100", "mset",
];

/// The clients of each kind of load.
const CLIENTS: &str = "3";

/// A command that has been executed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Executed {
    command: String,
    /// The address of the client, or the one of its record in the server.
    client: String,
    /// The first key. PING has none.
    key: Option<String>,
}

/// A server under gprofinject, and where it listens.
struct Server<'a> {
    place: &'a Place,
    port: u16,
}

impl Server<'_> {
    /// Runs the server until it is shut down.
    fn run(&self, program: &str) -> run::Outcome {
        let port = self.port.to_string();
        let server = [program, "--port", &port, "--bind", "127.0.0.1", "--save", "", "--loglevel", "warning"];
        let options = ["-q", "--rate=0", "--libs=none", "--stats=stats", "--trace=trace", "--args"];
        let args = ["*Command@arg1/x64;dictFind@arg2/s"];
        place::finish(self.place.command(&[&options[..], &args, &server].concat()))
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        command
    }

    fn ask(&self, args: &[&str]) -> String {
        let mut command = self.client("redis-cli");
        command.args(args);
        place::finish(command).stdout_text()
    }

    /// Waits until the server says something.
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Has all clients work at once, and the server write a copy of its data in a child meanwhile. Returns what MONITOR has printed, and
    /// how often each command has been executed.
    fn load(&self) -> (String, BTreeMap<String, u64>) {
        self.until("the server does not listen", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
        let printed = self.place.path("monitor");
        let mut monitor = self.client("redis-cli");
        let mut monitor =
            monitor.arg("monitor").stdin(Stdio::null()).stdout(File::create(&printed).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        self.until("MONITOR does not begin", || std::fs::read_to_string(&printed).unwrap().starts_with("OK\n"));
        let clients: Vec<_> = LOAD
            .iter()
            .map(|load| {
                let mut command = self.client("redis-benchmark");
                command.args(["-q", "-c", CLIENTS, "-P", "2", "-n", "100", "-r", "200", "-t", load]);
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        assert!(self.ask(&["bgsave"]).contains("saving started"));
        for mut client in clients {
            assert!(client.wait().unwrap().success());
        }
        self.until("the child does not end", || {
            self.ask(&["info", "persistence"]).contains("rdb_bgsave_in_progress:0")
        });
        let counts = self.ask(&["info", "commandstats"]);
        self.ask(&["shutdown", "nosave"]);
        monitor.wait().unwrap();
        let count = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        (std::fs::read_to_string(printed).unwrap(), counts.lines().filter_map(count).collect())
    }
}

/// Returns the commands of the load that MONITOR has printed: `1795646573.519653 [0 127.0.0.1:45678] "SET" "key:000000000012" "VXK"`.
fn printed(text: &str) -> Vec<Executed> {
    let command = |line: &str| {
        let (client, rest) = line.split_once(" [0 ").unwrap().1.split_once("] ").unwrap();
        let mut words = rest.split(' ').map(|word| word.trim_matches('"').to_owned());
        let command = words.next().unwrap().to_lowercase();
        let is_load = COMMANDS.contains(&&*command);
        assert!(is_load || command == "info", "{line}");
        is_load.then(|| Executed { command, client: client.to_owned(), key: words.next() })
    };
    text.lines().filter(|&line| line != "OK").filter_map(command).collect()
}

/// Returns the calls of the commands' functions: `setCommand(0x7fdb3bc9d500) {`, and `dictFind("key:000000000012");` within it, which
/// looks for the key.
fn called(lines: &[Line]) -> Vec<Executed> {
    let mut found: Vec<Executed> = Vec::new();
    // How deep the last one is, until its key is found.
    let mut inside: Option<usize> = None;
    for Line { depth, text, .. } in lines {
        inside = inside.filter(|around| around < depth);
        let Some((name, rest)) = text.split_once('(').filter(|_| !text.starts_with('}')) else { continue };
        if let Some(command) = name.strip_suffix("Command").filter(|command| COMMANDS.contains(command)) {
            let client = rest.split(')').next().unwrap().to_owned();
            found.push(Executed { command: command.to_owned(), client, key: None });
            inside = Some(*depth);
        } else if name == "dictFind" && inside.take().is_some() {
            found.last_mut().unwrap().key = rest.split('"').nth(1).map(str::to_owned);
        }
    }
    found
}

fn the_commands_of_redis_are_those_that_monitor_prints() {
    let test = "traced: redis";
    if !skip::have_for(test, &["redis-server", "redis-cli", "redis-benchmark"]) {
        return;
    }
    let program = skip::path_of("redis-server").unwrap();
    let place = Place::new();
    // Nothing else asks for a port at random here, so that it is free when the server wants it.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server { place: &place, port };
    let (outcome, (monitor, counts)) = std::thread::scope(|scope| {
        let runs = scope.spawn(|| server.run(program.to_str().unwrap()));
        let said = server.load();
        (runs.join().unwrap(), said)
    });
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("stats")).unwrap()).unwrap();

    let lines = lines(&shown(&place, "trace", &["--fields", "tid"]));
    let executes = |line: &&Line| COMMANDS.iter().any(|command| line.text.starts_with(&format!("{command}Command(")));
    let threads: BTreeSet<u32> = lines.iter().filter(executes).map(|line| line.tid).collect();
    assert_eq!(threads.len(), 1, "{threads:?}");
    let main: Vec<Line> = lines.iter().filter(|line| threads.contains(&line.tid)).cloned().collect();
    let (printed, called) = (printed(&monitor), called(&main));

    // Each command, in their order, with its key.
    let what = |all: &[Executed], at: usize| all.get(at).map(|one| (one.command.clone(), one.key.clone()));
    for at in 0..printed.len().max(called.len()) {
        assert_eq!(what(&called, at), what(&printed, at), "command {at} in the trace, and as MONITOR has it");
    }
    assert!(printed.len() >= LOAD.len() * 100, "{}", printed.len());
    // A client has one record as long as it is connected, and the clients of a load are connected at the same time.
    let mut records: BTreeMap<&str, &str> = BTreeMap::new();
    for (printed, called) in printed.iter().zip(&called) {
        let record = records.entry(&printed.client).or_insert(&called.client);
        assert_eq!(*record, called.client, "{printed:?}");
    }
    assert!(records.values().collect::<BTreeSet<_>>().len() >= 3, "{records:?}");
    let mut executed: BTreeMap<String, u64> = BTreeMap::new();
    for one in &called {
        *executed.entry(one.command.clone()).or_default() += 1;
    }
    let counts: BTreeMap<String, u64> =
        counts.into_iter().filter(|(command, _)| COMMANDS.contains(&command.as_str())).collect();
    assert_eq!(executed, counts, "calls in the trace, and as commandstats has them");

    // All calls, also those of the child, to the last one. What the child has inherited from its parent are no calls of its own.
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let others = stats["processes"].as_array().unwrap().iter().map(|process| number(&process["calls"]));
    let counted = number(&stats["calls"]) + others.sum::<u64>();
    let (inherited, own): (Vec<&Line>, Vec<&Line>) = lines
        .iter()
        .filter(|line| !line.text.starts_with('}'))
        .partition(|line| line.text.contains("open since before the fork"));
    assert!(!inherited.is_empty());
    assert_eq!((own.len() as u64, number(&stats["trace"]["lost"])), (counted, 0));
    println!("| redis-server | MONITOR | {} of {counted} calls, {} clients | equal |", printed.len(), records.len());
}
