package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"penstock/internal/config"
)

// addStdinFlag adds --stop-with-stdin to the command of a worker: a program which starts the worker keeps a pipe open, and
// the system closes that however the program ends.
func addStdinFlag(cmd *cobra.Command, run roleFunc) roleFunc {
	var enabled bool
	cmd.Flags().BoolVar(&enabled, "stop-with-stdin", false, "stop as after SIGTERM when standard input ends: for a program that starts the worker and holds a pipe to it")
	return func(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready readyFunc) error {
		if enabled {
			var stop context.CancelFunc
			ctx, stop = withInput(ctx, cmd.InOrStdin())
			defer stop()
		}
		return run(ctx, cfg, stderr, ready)
	}
}

// withInput returns a context which ends when in does. Reading cannot be interrupted: the goroutine ends with in, or with
// the process.
func withInput(ctx context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, in) // an error is an end too
		stop()
	}()
	return ctx, stop
}
