package main

import (
	"errors"

	"github.com/spf13/cobra"

	"penstock/internal/config"
)

// addExecFlag adds --exec and the engine's command behind two dashes to the command of a worker.
func addExecFlag(cmd *cobra.Command, flags *config.Flags) {
	var enabled bool
	cmd.Use += " [--exec -- ENGINE-COMMAND...]"
	cmd.Flags().BoolVar(&enabled, "exec", false, "start the engine with the command behind two dashes, and supervise it: --exec -- vllm serve MODEL")
	cmd.Args = checkArgs(func(cmd *cobra.Command, args []string) error {
		dash := cmd.ArgsLenAtDash()
		switch {
		case !enabled && dash == 0 && len(args) > 0:
			return errors.New("a command stands behind the two dashes, and --exec is not given: write --exec -- and the engine's command")
		case !enabled:
			return noArgs(cmd, args)
		case dash > 0 || dash < 0 && len(args) > 0:
			return errors.New("the engine's command stands behind two dashes: --exec -- vllm serve MODEL")
		case len(args) == 0:
			return errors.New("--exec: the engine's command is missing: --exec -- vllm serve MODEL")
		}
		flags.SetExecCommand(args)
		return nil
	})
}
