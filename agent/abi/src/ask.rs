//! The packets that a profiled process sends to the injector over a SOCK_SEQPACKET socket in the run folder: one
//! packet per connection. Some kinds get an answer. The injector identifies the sender by SO_PEERCRED.

/// First byte of the packet of a forked child that has made its region file. The child's name in the run folder
/// follows. The injector sends no answer.
pub const FORKED: u8 = b'F';
/// The only byte of the packet of a process that is about to execute a program. A descriptor of the program's file
/// comes with it (SCM_RIGHTS), because only the process itself can resolve the path: the process may have another
/// root folder or mount namespace, or the path may lead through `/proc/self`. The injector answers with the name that
/// the process has from then on, or with an empty packet if it does not follow the program.
pub const EXECUTES: u8 = b'E';
/// First byte of a request from another gprofinject. The injector answers with a description of what it has done.
pub const CONTROL: u8 = b'C';
/// The length in bytes of the longest name in an answer to a process.
pub const NAME_MAX: usize = 32;
