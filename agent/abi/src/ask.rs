//! The messages that a profiled process sends to the injector over a SOCK_SEQPACKET socket in the run folder:
//! one packet per connection. The injector answers some kinds. The injector identifies the sender by
//! SO_PEERCRED.

/// The first byte of a packet that reports a forked child which has made its region file. The child's name in
/// the run folder follows. The injector sends no answer.
pub const FORKED: u8 = b'F';
/// The only byte of a packet that reports that the process is about to execute a program. A descriptor of the
/// program's file comes with it (SCM_RIGHTS), because only the process itself can resolve a path: it may have
/// another root folder or mount namespace, or the path may lead through `/proc/self`. The injector answers
/// with the name that the process has from then on, or with an empty packet if it does not follow the
/// program.
pub const EXECUTES: u8 = b'E';
/// The first byte of a request from another gprofinject process. The injector answers with a description of
/// what it did.
pub const CONTROL: u8 = b'C';
/// The length in bytes of the longest name in an answer to a process.
pub const NAME_MAX: usize = 32;
