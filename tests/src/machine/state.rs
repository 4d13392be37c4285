//! What code can see before it runs on a [`crate::machine::Machine`], and how it stops.

/// What fills the code areas.
pub const INT3: u8 = 0xcc;

/// All registers that code can see.
#[derive(Clone)]
pub struct State {
    pub general: libc::user_regs_struct,
    /// As `xsave` writes them: x87, vectors, masks.
    pub extended: Vec<u8>,
}

/// Why the code stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At an `int3` at this address.
    Breakpoint(u64),
    /// By this signal at this address.
    Signal(i32, u64),
    SystemCall,
    /// Runs on and on.
    Endless,
    /// The process is gone.
    Killed,
}
