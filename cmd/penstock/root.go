package main

import "github.com/spf13/cobra"

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
	root.AddCommand(newUpCommand(), newFrontendCommand(), newWorkerCommand(), newRouterCommand(), newChatCommand(), newRouteCommand(), newWorkersCommand(), newEventsCommand(), newBenchCommand(), newConfigCommand(), newDoctorCommand(), newReplayCommand(), newSimCommand(), newVersionCommand())
	root.SetHelpCommand(newHelpCommand())
	return root
}
