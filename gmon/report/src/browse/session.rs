//! One turn: keys, signals, what was read, drawing.

use std::io;

use anyhow::{Context, Result};
use gmon_export::Run;
use gmon_export::load::{self, Detail};
use gmon_screen::{Screen, terminal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::browse::chosen::{Choice, Chosen, choices};
use crate::browse::draw::theme::Theme;
use crate::browse::draw::whole::draw;
use crate::browse::model::{Action, Model};
use crate::browse::signals::{self, Signals};
use crate::browse::worker::Worker;
use crate::cli::browse_args::BrowseArgs;
use crate::cli::run::{self, Source};
use crate::cli::text::plain;

/// Whether a browser can be shown: standard input and output are a terminal that this command may fill.
pub(crate) fn has_terminal() -> bool {
    terminal::is_one(io::stdin()) && terminal::is_one(io::stdout()) && terminal::check().is_ok()
}

/// Shows a run until the user leaves.
///
/// # Errors
/// The files cannot be read, do not belong together, or the terminal cannot be set up.
pub(crate) fn browse(args: BrowseArgs) -> Result<()> {
    let mut source = run::open(&args.files)?;
    let (run, is_complete) = first_view(&mut source)?;
    let library = source.library().and_then(|path| path.file_name());
    let library = library.map(|name| name.to_string_lossy().into_owned());
    let mut model = Model::new(run, choices_of(&source), library);
    let mut signals = Signals::take().context("signals")?;
    let worker = Worker::start(source, args.sources, signals.waker()?).context("a thread that reads")?;
    let mut screen = Screen::take(&|_, _| None).context("the terminal")?;
    if !is_complete && let Action::Ask(request) = model.complete() {
        worker.ask(request);
    }
    let theme = Theme::of_environment();
    loop {
        if screen.draw(|frame| draw(frame, &mut model, theme)).is_err() {
            // The terminal is gone, and with it whoever could be told.
            return Ok(());
        }
        wait(&screen, &signals)?;
        signals.drain();
        if let Some(signal) = signals.end() {
            drop(screen);
            signals::die(signal);
            return Ok(());
        }
        if signals.take_stop() {
            terminal::without(signals::stop);
        }
        let Ok(keys) = screen.typed() else { return Ok(()) };
        for key in keys {
            match model.key(key) {
                Some(Action::Quit) => return Ok(()),
                Some(Action::Ask(request)) => worker.ask(request),
                None => {}
            }
        }
        worker.answers().for_each(|answer| model.take(answer));
    }
}

/// Waits for a key, a signal, or something that was read.
fn wait(screen: &Screen, signals: &Signals) -> io::Result<()> {
    let mut wanted = [PollFd::new(screen, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    match poll(&mut wanted, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the run with what the files themselves say, and whether that is all. Counts of basic blocks need the files of modules,
/// whose reading takes long.
fn first_view(source: &mut Source) -> Result<(Run, bool)> {
    match source {
        Source::Recording { recording, .. }
            if !recording.blocks.is_empty() && (!recording.calls.is_empty() || recording.is_measured()) =>
        {
            let blocks = std::mem::take(&mut recording.blocks);
            let run = load::recording(recording, Detail::Functions);
            recording.blocks = blocks;
            Ok((run, false))
        }
        source => Ok((source.run(Detail::Functions)?, true)),
    }
}

/// Returns the programs and threads of a run.
fn choices_of(source: &Source) -> Vec<Choice> {
    match source {
        Source::Recording { recording, .. } => choices(recording),
        Source::Profile { program, .. } => vec![Choice {
            chosen: Chosen::All,
            name: plain(&program.display().to_string()),
            which: "1 program".to_owned(),
            calls: None,
            samples: None,
            life: String::new(),
            is_part: false,
        }],
    }
}
