//! Names of environment variables and of files in a run folder.

/// The variable by which the dynamic linker loads the agent's library. gprofinject adds one to the end of the environment,
/// before [`RUN_VARIABLE`], and leaves the user's own one where it is. The dynamic linker obeys the last one, so its value
/// begins with the agent's library and ends with the user's own value.
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// The variable that identifies the run for the agent: `FOLDER/NAME`, where `FOLDER` is the run folder and `NAME` is the
/// process's own name in it. The last one counts: the user may have a variable of that name. The agent removes both variables
/// before any code of the program can read them.
pub const RUN_VARIABLE: &str = "GPROFINJECT_RUN";
/// File name of the agent's library in the run folder.
pub const AGENT_FILE: &str = "libgprofinject.so";
/// File name of a link to a memory file with the agent's library, if there is one. Its length is fixed, so that the library in
/// memory does not depend on the file in the run folder.
pub const AGENT_MEMORY_FILE: &str = "libgprofinject.memory";
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
