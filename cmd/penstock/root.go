package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newRoot returns the whole command tree.
func newRoot() *cobra.Command {
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
		Args:          unknownCommand,

		SuggestionsMinimumDistance: 2,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("penstock {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w; see \"%s --help\"", err, cmd.CommandPath()))
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newUp(), newFrontend(), newWorker(), newRouter(), newChat(), newRoute(), newWorkers(), newEvents(), newBench(), newConfig(), newDoctor(), newReplay(), newSim(), newVersion())
	return root
}

func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	msg := fmt.Sprintf("unknown command %q", args[0])
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		msg += fmt.Sprintf("; did you mean %q?", s[0])
	}
	return usage(fmt.Errorf("%s; see \"%s --help\"", msg, cmd.CommandPath()))
}

// args turns a check of the arguments into one that marks its error as usage.
//
// A flag that may stand without a value takes the word behind it for none, which
// is then the argument that is too many.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			if name := switched(cmd); name != "" {
				return usage(fmt.Errorf("%q is no argument of \"%s\": a value of --%s follows an =, as in --%s=%s", args[0], cmd.CommandPath(), name, name, args[0]))
			}
			return usage(fmt.Errorf("%w; see \"%s --help\"", err, cmd.CommandPath()))
		}
		return nil
	}
}

// switched returns the name of a flag that was given without the value that it may have, if any was.
func switched(cmd *cobra.Command) (name string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal && f.Value.Type() != "bool" {
			name = f.Name
		}
	})
	return name
}
