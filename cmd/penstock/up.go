package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/config"
	"penstock/internal/node"
)

func newUpCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start everything in one process: a KV-aware LLM service on this machine",
		Long: `Start embedded NATS with JetStream, discovery, a frontend with the KV router and the
workers of an engine in one process. Ctrl-C lets running requests finish and exits.

Without --model-path the workers serve the built-in model penstock-tiny, a real
transformer with random weights: its answers are nonsense, made of words. With
--engine sim caches, batches, events and load are real, and the time of a step is that
of a model (docs/sim.md): a laptop holds a fleet of hundreds of workers.

With --engine vllm=URL (sglang=, trtllm=, llamacpp=), which may be repeated, it stands in
front of engines that run already. Behind the URL follow, after commas, options such as
events=tcp://HOST:PORT, where the engine publishes what it caches (docs/engines.md). It
serves as soon as one engine does, and takes in the others when they come.`,
		Example: `  penstock up
  penstock up --workers 4 --router-mode round-robin
  penstock up --model-path ./Qwen2.5-0.5B-Instruct --http-addr 127.0.0.1:9000
  penstock up --engine sim --workers 64 --sim-speedup 10
  penstock up --workers 1 --prefill-workers 1 --encode-workers 1
  penstock up --engine sim --workers 1 --planner --planner-connector process --planner-apply   # as many as the load needs
  penstock up --engine vllm=http://a:8000,events=tcp://a:5557 --engine vllm=http://b:8000,events=tcp://b:5557
  penstock up --engine llamacpp=http://127.0.0.1:8080 --model-path ./Qwen2.5-0.5B-Instruct
  penstock up --http-addr 127.0.0.1:0 --json   # prints {"url":…} once it is ready`,
		Args: checkArgs(noArgs),
	}
	flags := config.AddFlags(cmd.Flags(), config.Up)
	addConfigFlag(cmd)
	groupHelp(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON once ready, nothing else on standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := loadConfig(cmd, flags)
		if err != nil {
			return err
		}
		ready := func(r node.Ready) {
			if asJSON {
				// A failed write is not a reason to stop serving.
				_ = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
				return
			}
			if wantsHumanText(cmd.ErrOrStderr(), l) {
				printWelcome(cmd.ErrOrStderr(), r)
			}
		}
		err = node.RunUp(cmd.Context(), l, cmd.ErrOrStderr(), ready)
		return reportExit(cmd.ErrOrStderr(), l, "stopped", err)
	}
	return cmd
}

// printWelcome prints the one screen of up.
func printWelcome(w io.Writer, r node.Ready) {
	served, route := r.Model, "route"
	if len(r.Engines) > 0 {
		served = listServedModels(r.Engines)
	}
	if !r.Chat {
		route = "route --raw"
	}
	fmt.Fprintf(w, "\n  Penstock serves %s on %s  (ready in %v)\n\n  Try it:\n%s\n%s\n", served, r.URL, r.Took.Round(time.Millisecond), chatHint(r), curlExample(r))
	if len(r.Engines) > 0 {
		printEngines(w, r.Engines)
		fmt.Fprintf(w, "\n  %s, routed by %s\n", formatWorkerCount(r.Workers), r.RouterMode)
	} else {
		fmt.Fprintf(w, "  %s, engine %s, %d KV blocks of %d tokens each, routed by %s\n", formatWorkerCount(r.Workers), r.Engine, r.Blocks, r.BlockSize, r.RouterMode)
	}
	if r.PrefillWorkers > 0 {
		fmt.Fprintf(w, "  Beside them %d of role prefill, which compute long prompts for them (docs/disaggregation.md)\n", r.PrefillWorkers)
	}
	if r.EncodeWorkers > 0 {
		does := "encode what requests show"
		if len(r.Engines) == 0 && (r.Engine != config.EngineTiny || len(r.Media) == 0) {
			does = "serve nothing with this engine and model"
		}
		fmt.Fprintf(w, "  Beside them %d of role encode, which %s\n", r.EncodeWorkers, does)
	}
	if r.Simulation != "" {
		fmt.Fprintf(w, "  A simulation: caches, batches and events are real, tokens are not computed; model of time: %s\n", r.Simulation)
	}
	if len(r.Media) > 0 && len(r.Engines) == 0 {
		fmt.Fprintf(w, "  Media:    %s (docs/media.md shows how)\n", strings.Join(r.Media, ", "))
	}
	fmt.Fprint(w, keyHint(r.Access))
	fmt.Fprintf(w, "  Metrics:  %s/metrics\n", r.URL)
	if r.NATS != "" {
		fmt.Fprintf(w, "  NATS:     %s\n", r.NATS)
	}
	if r.Planner {
		fmt.Fprintf(w, "  Planner:  %s\n", planExample(r.URL, r.Access))
	}
	fmt.Fprintf(w, `  Look in:  penstock workers · penstock %s --explain "some text" · penstock events%s
  Stop:     Ctrl-C (running requests may finish)

`, route, serverHint(r.URL, r.Access))
}

// curlExample returns a command which streams an answer, with at most one argument a line, which keeps the
// lines short.
func curlExample(r node.Ready) string {
	path, prompt := "/v1/chat/completions", `"messages": [{"role": "user", "content": "Where does the water go?"}]`
	if !r.Chat {
		path, prompt = "/v1/completions", `"prompt": "Where does the water"`
	}
	lines := []string{"curl -N " + r.Access.URLOf(r.URL) + path}
	lines = append(append(lines, curlFlags(r.URL, r.Access)...), `-H 'Content-Type: application/json'`)
	if r.Access.KeyFile != "" {
		lines = append(lines, `-H "Authorization: Bearer $`+config.EnvKey+`"`)
	}
	body := fmt.Sprintf("-d '{\"model\": \"%s\", \"stream\": true,\n           %s}'", r.Model, prompt)
	return "    " + strings.Join(append(lines, body), " \\\n      ") + "\n"
}

// chatHint returns the line with the chat command if the model supports chat.
func chatHint(r node.Ready) string {
	if !r.Chat {
		return ""
	}
	return "\n    penstock chat" + serverFlags(r.URL, r.Access) + "\n"
}

func formatWorkerCount(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}
