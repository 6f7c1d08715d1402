package launch

import "syscall"

// endWithParent has the engine get SIGTERM when this process ends, also by SIGKILL. SIGTERM lets the engine end its own
// processes, which SIGKILL would leave.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }

// EndsWithParent reports whether an engine also ends when this process is killed.
const EndsWithParent = true
