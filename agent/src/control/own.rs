//! What an order does in one build of the library only: in a process with glibc's dynamic linker, or in a standalone
//! program, where each thread needs a record ([`crate::os::records`]).

#[cfg(not(feature = "standalone"))]
mod build {
    use crate::hot::slow_stack;
    use crate::os::initial::{AT_BASE, Start};
    use crate::os::words::SLOW_STACK;
    use crate::process::birth;
    use crate::program::agent::Agent;
    use crate::start::functions;
    use gprofinject_abi::attach::{Order, ThreadOrder, WORDS};

    /// Makes it possible to carry out the order in the calling thread.
    #[allow(clippy::unnecessary_wraps, reason = "it fails in the other build")]
    pub(in crate::control) fn begin(_: &Order) -> Result<(), i32> {
        Ok(())
    }

    /// Finds what the agent needs of the C library.
    ///
    /// # Errors
    /// The C library makes its threads in an unknown way.
    pub(in crate::control) fn prepare(start: &Start) -> Result<(), i32> {
        birth::prepare(start.auxiliary(AT_BASE))?;
        functions::find(start.auxiliary(AT_BASE));
        Ok(())
    }

    /// Nothing: the words of these threads are not in records.
    pub(in crate::control) fn report(_: &mut Order) {}

    /// Returns the address of a stopped thread's word of its stack for slow paths.
    fn words_of(thread: &ThreadOrder) -> u64 {
        thread.fs + WORDS + SLOW_STACK as u64
    }

    /// Gives the threads, if hooks need it, stacks for slow paths; their words are not in records.
    pub(in crate::control) fn give_records(order: &mut Order) {
        let threads = order.threads.get(..order.threads_count as usize).unwrap_or_default();
        if Agent::get().small_stacks {
            slow_stack::give(threads.iter().map(words_of));
        }
    }
}

#[cfg(feature = "standalone")]
mod build {
    use crate::hot::{own_stack, slow_stack};
    use crate::os::initial::Start;
    use crate::os::words::SLOW_STACK;
    use crate::os::{records, words};
    use crate::program::agent::Agent;
    use gprofinject_abi::attach::Order;

    /// Makes it possible to carry out the order in the calling thread.
    ///
    /// # Errors
    /// The thread has no record, and gs cannot be set.
    pub(in crate::control) fn begin(order: &Order) -> Result<(), i32> {
        if order.bare != 0 { records::borrow_main() } else { Ok(()) }
    }

    /// Prepares for threads that run already. The plan leads everything that the agent has to see to it, so nothing of
    /// the C library has to be found.
    #[allow(clippy::unnecessary_wraps, reason = "it fails in the other build")]
    pub(in crate::control) fn prepare(_: &Start) -> Result<(), i32> {
        words::set_attached();
        Ok(())
    }

    /// Reports where the records are.
    pub(in crate::control) fn report(order: &mut Order) {
        order.records = records::extent();
    }

    /// Returns to the injector for each thread the address of its record.
    pub(in crate::control) fn give_records(order: &mut Order) {
        let count = order.threads_count as usize;
        for thread in order.threads.iter_mut().take(count) {
            let fs = thread.fs;
            thread.gs = records::of_running(thread.tid as u32, thread.gs, || own_stack::of_stopped(fs));
        }
        let threads = order.threads.get(..count).unwrap_or_default();
        if Agent::get().small_stacks {
            slow_stack::give(threads.iter().map(|thread| thread.gs + SLOW_STACK as u64));
        }
    }
}

pub(super) use build::{begin, give_records, prepare, report};
