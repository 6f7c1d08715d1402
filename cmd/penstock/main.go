// Command penstock is a distributed serving stack for large language models:
// one binary that plays every role. "penstock up" starts all of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"penstock/internal/config"
	"penstock/internal/node"
)

// The exit codes.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2 // the command line or the configuration is wrong
	exitNotReady = 3 // something did not become ready in time
)

func main() { os.Exit(runCommandLine(os.Args[1:], os.Stdout, os.Stderr)) }

// runCommandLine executes one command line and returns its exit code. The first interrupt asks the command to
// stop; the second ends the process at once.
func runCommandLine(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal has its default effect again

	cmd := newRootCommand()
	cmd.InitDefaultCompletionCmd()
	requireSubcommands(cmd)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if told := (reportedError{}); !errors.As(err, &told) {
		fmt.Fprintf(stderr, "penstock: %s\n", printableLines(err.Error()))
	}
	var coded exitCodeError
	if errors.As(err, &coded) {
		return coded.code
	}
	if ended := (*node.EngineExitError)(nil); errors.As(err, &ended) {
		return ended.Code
	}
	if setting := (*config.SettingError)(nil); errors.As(err, &setting) {
		return exitUsage
	}
	if errors.Is(err, config.ErrNotReady) {
		return exitNotReady
	}
	return exitFailed
}

// exitCodeError is an error with an exit code other than 1.
type exitCodeError struct {
	error
	code int
}

func (e exitCodeError) Unwrap() error { return e.error }

// usageError marks err as the user's mistake.
func usageError(err error) error {
	if err == nil {
		return nil
	}
	return exitCodeError{err, exitUsage}
}

// newRootCommand returns the whole command tree.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Serve large language models behind a KV-cache-aware router",
		Long: `Penstock serves large language models through an OpenAI-compatible API and sends
each request to the worker that already holds most of its KV cache.

Start with "penstock up": it needs nothing else. A fleet is the same in processes:
frontends, workers and, where wanted, routers.`,
		Example: `  penstock up
  penstock chat
  penstock up --model-path ./Qwen2.5-0.5B-Instruct --workers 2
  penstock frontend --nats-listen 127.0.0.1:4222 &
  penstock worker --nats nats://127.0.0.1:4222`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("penstock {{.Version}}\n")
	root.SetFlagErrorFunc(explainFlagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newUpCommand(), newFrontendCommand(), newWorkerCommand(), newRouterCommand(), newPlannerCommand(), newPlanCommand(), newChatCommand(), newRouteCommand(), newWorkersCommand(), newEventsCommand(), newBenchCommand(), newConfigCommand(), newDoctorCommand(), newQueueCommand(), newReplayCommand(), newSimCommand(), newVersionCommand())
	root.AddCommand(optionalCommands()...)
	root.SetHelpCommand(newHelpCommand())
	return root
}
