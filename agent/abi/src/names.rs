//! Names of environment variables and of files in a run folder.

/// Environment variable that identifies the run for the agent: `FOLDER/NAME`, where `FOLDER` is the run folder and
/// `NAME` is the process's own name in it. The agent removes the variable, and itself from `LD_PRELOAD`, before any
/// code of the program can read them.
pub const RUN_VARIABLE: &str = "GPROFINJECT_RUN";
/// The user's own `LD_PRELOAD`, if it was set. The agent restores it.
pub const PRELOAD_VARIABLE: &str = "GPROFINJECT_LD_PRELOAD";
/// File name of the agent's library in the run folder.
pub const AGENT_FILE: &str = "libgprofinject.so";
/// The file name of the library with Frida's gum, which is in the run folder if gum writes the patches (see
/// [`crate::frida`]).
pub const FRIDA_FILE: &str = "libgprofinject-frida.so";
/// File name of the injector's socket in the run folder (see [`crate::ask`]).
pub const ASK_FILE: &str = "ask";
/// File name of a link to the command that has made the run folder. A process that outlives that command
/// executes the linked program.
pub const COMMAND_FILE: &str = "gprofinject";
/// A process's plan file is `NAME.plan`. Forked children share their parent's.
pub const PLAN_SUFFIX: &str = ".plan";
/// A process's region file is `NAME.region`. A forked child makes its own, named `f` and its process number.
pub const REGION_SUFFIX: &str = ".region";
/// The greatest length in bytes of a run folder's path.
pub const FOLDER_MAX: usize = 1024;
