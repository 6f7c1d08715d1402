package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/node"
)

// roleFunc is the signature with which package node runs a process of one role.
type roleFunc func(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready readyFunc) error

// readyFunc is called once, with the process which is ready.
type readyFunc = func(node.Started)

func newFrontendCommand() *cobra.Command {
	return newRoleCommand(config.Frontend, node.RunFrontend, &cobra.Command{
		Short: "Serve the HTTP APIs for the workers of a fleet, with a router inside",
		Long: `Serve the OpenAI-compatible API and the others for every model that the workers of a
fleet serve, and route each request to the worker that holds most of its KV cache.
A fleet may have several frontends; each knows all workers.

It accepts requests at once and answers 503 while no worker is there. SIGTERM or
Ctrl-C lets running requests finish.`,
		Example: `  penstock frontend --nats-listen 127.0.0.1:4222          # embeds the fleet's NATS server
  penstock frontend --nats nats://127.0.0.1:4222 --http-addr 127.0.0.1:8001
  penstock frontend --nats nats://127.0.0.1:4222 --component router   # sends to router processes
  penstock frontend --nats-listen 127.0.0.1:0 --json      # prints {"url":…,"nats":…} once it serves`,
	})
}

func newWorkerCommand() *cobra.Command {
	return newRoleCommand(config.Worker, node.RunWorker, &cobra.Command{
		Short: "Serve one engine to the frontends and routers of a fleet",
		Long: `Run one engine, register it in the fleet, serve requests on the request plane and
publish what its KV cache holds. There is no HTTP unless --http-addr is given:
/metrics, /health and /ready (200 while it takes requests) and /live.

With --engine vllm=URL (sglang=, trtllm=, llamacpp=, python=) it stands in front of an engine that
runs already, with a worker for each of its data-parallel ranks, and follows the events
of its cache at --kv-events and --kv-replay.

With --exec it starts the engine itself, with the command behind two dashes, adds the flags
that are needed, starts it again when it ends, and ends with it (docs/engines.md).

SIGTERM or Ctrl-C has it leave the fleet and finish what it has; what is left at
the drain timeout goes on at another worker.`,
		Example: `  penstock worker --nats nats://127.0.0.1:4222
  penstock worker --nats nats://127.0.0.1:4222 --model-path ./Qwen2.5-0.5B-Instruct --data-dir ./worker-1
  penstock worker --nats nats://127.0.0.1:4222 --engine sim --served-model-name llama-8b
  penstock worker --nats nats://127.0.0.1:4222 --engine vllm=http://127.0.0.1:8000 --kv-events tcp://127.0.0.1:5557 --kv-replay tcp://127.0.0.1:5558
  penstock worker --nats nats://127.0.0.1:4222 --exec -- vllm serve Qwen/Qwen2.5-7B-Instruct
  penstock worker --nats nats://127.0.0.1:4222 --exec --exec-log engine.log -- llama-server -m model.gguf
  penstock worker --nats nats://10.0.0.5:4222             # serves at the address from which it reaches NATS
  penstock worker --nats nats://10.0.0.5:4222 --rpc-addr 0.0.0.0:7000 --rpc-advertise 10.1.0.7
  penstock worker --nats nats://127.0.0.1:4222 --http-addr 127.0.0.1:0 --json   # prints {"worker_id":…}`,
	})
}

func newRouterCommand() *cobra.Command {
	return newRoleCommand(config.Router, node.RunRouter, &cobra.Command{
		Short: "Route for frontends: a process that is an instance of every model it routes to",
		Long: `Register as an instance of each model that the workers of a fleet serve, under the
component name "router", and pass every request on to the worker that holds most of
its KV cache. When a worker fails the request goes on at another one. Frontends
started with --component router send to it; with --http-addr it also offers the
router API to others. With --multimodal it finds out for frontends what the images,
videos and sounds of requests are.`,
		Example: `  penstock router --nats nats://127.0.0.1:4222
  penstock router --nats nats://127.0.0.1:4222 --http-addr 127.0.0.1:8100
  penstock router --nats nats://127.0.0.1:4222 --multimodal
  penstock frontend --nats nats://127.0.0.1:4222 --component router   # a frontend that uses it
  penstock workers --server http://127.0.0.1:8100`,
	})
}

// newRoleCommand completes the command of one role.
func newRoleCommand(command config.Command, run roleFunc, cmd *cobra.Command) *cobra.Command {
	var asJSON bool
	cmd.Use = string(command)
	cmd.Args = checkArgs(noArgs)
	flags := config.AddFlags(cmd.Flags(), command)
	if command == config.Worker {
		addExecFlag(cmd, flags)
		run = addStdinFlag(cmd, run)
	}
	addConfigFlag(cmd)
	groupHelp(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON once ready, nothing else on standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := loadConfig(cmd, flags)
		if err != nil {
			return err
		}
		ready := func(s node.Started) {
			if asJSON {
				// A failed write is not a reason to stop serving.
				_ = json.NewEncoder(cmd.OutOrStdout()).Encode(s)
				return
			}
			if wantsHumanText(cmd.ErrOrStderr(), l) {
				printRoleGreeting(cmd.ErrOrStderr(), l, s)
			}
		}
		err = run(cmd.Context(), l, cmd.ErrOrStderr(), ready)
		return reportExit(cmd.ErrOrStderr(), l, string(command)+" stopped", err)
	}
	return cmd
}

// printRoleGreeting prints what a process of one role serves and how others find it.
func printRoleGreeting(w io.Writer, l *config.Loaded, s node.Started) {
	var b strings.Builder
	took := s.Took.Round(time.Millisecond)
	switch l.Command {
	case config.Frontend:
		fmt.Fprintf(&b, "\n  Penstock frontend on %s  (ready in %v)\n  Sends to:  workers of namespace %s, component %s, as they come\n", s.URL, took, l.Fleet.Namespace, l.Fleet.Component)
	case config.Worker:
		does := "serves"
		switch l.WorkerRoles()[0] {
		case engine.RolePrefill:
			does = "of role prefill, which takes no whole requests, is up for"
		case engine.RoleEncode:
			does = "of role encode, which other workers ask, is up for"
		}
		fmt.Fprintf(&b, "\n  Penstock worker %d %s %s at %s  (ready in %v)\n", s.WorkerID, does, s.Model, s.Addr, took)
		if l.Fleet.Discovery == config.DiscoveryStatic {
			fmt.Fprintf(&b, "  Tell others:  --discovery static --static-workers %s\n", s.Addr)
		} else {
			fmt.Fprintf(&b, "  Registered in namespace %s, component %s\n", l.Fleet.Namespace, l.Fleet.Component)
		}
		if len(s.Engines) > 0 {
			b.WriteString("\n")
			printEngines(&b, s.Engines)
			b.WriteString("\n")
		}
	case config.Router:
		fmt.Fprintf(&b, "\n  Penstock router  (ready in %v)\n  Sends to:  workers of namespace %s, component %s, as they come\n  Use it:    penstock frontend --component %s %s\n", took, l.Fleet.Namespace, l.Fleet.Component, l.Fleet.RouterComponent, discoveryFlags(l, s))
	case config.PlannerCommand:
		fmt.Fprintf(&b, "\n  Penstock planner  (ready in %v)\n  Plans for: %s\n", took, strings.Join(listSources(l), ", "))
		if !l.Planner.Apply {
			b.WriteString("  Dry run:   nothing is started or drained; --apply with a --connector acts\n")
		}
	}
	if s.NATS != "" {
		fmt.Fprintf(&b, "  NATS:      %s   (join with: penstock worker --nats %s)\n", s.NATS, s.NATS)
		if config.IsAllInterfaces(l.NATS.Listen) {
			b.WriteString("             From other hosts: with an address of this host in place of 127.0.0.1\n")
		}
	}
	if s.URL != "" {
		fmt.Fprintf(&b, "  Metrics:   %s/metrics\n", s.URL)
	}
	switch {
	case s.URL == "" || l.Command == config.Worker:
	case l.Command == config.PlannerCommand:
		b.WriteString(keyHint(s.Access))
		fmt.Fprintf(&b, "  Look in:   %s\n", planExample(s.URL, s.Access))
	default:
		b.WriteString(keyHint(s.Access))
		fmt.Fprintf(&b, "  Look in:   penstock workers%s\n", serverHint(s.URL, s.Access))
	}
	b.WriteString("  Stop:      Ctrl-C (running requests may finish)\n\n")
	_, _ = io.WriteString(w, b.String()) // a failed write is not a reason to stop serving
}

// listSources lists what a planner reads, without queries, which may have secrets.
func listSources(l *config.Loaded) []string {
	var all []string
	for _, text := range append([]string{l.Planner.Server}, l.Planner.Metrics...) {
		if name, _, _ := strings.Cut(text, "?"); name != "" {
			all = append(all, name)
		}
	}
	return all
}

// discoveryFlags returns the flags with which another process finds this router.
func discoveryFlags(l *config.Loaded, s node.Started) string {
	switch l.Fleet.Discovery {
	case config.DiscoveryFile:
		return "--discovery file --discovery-dir " + l.Fleet.DiscoveryDir
	case config.DiscoveryStatic:
		return "--discovery static --static-workers ADDRESS"
	}
	return "--nats " + natsURL(l, s)
}

// natsURL returns the URL at which another process reaches the fleet's NATS server.
func natsURL(l *config.Loaded, s node.Started) string {
	if s.NATS != "" {
		return s.NATS
	}
	if l.NATS.URLs == "" || strings.Contains(l.NATS.URLs, "@") {
		return "URL" // there is none, or it contains a password
	}
	return l.NATS.URLs
}
