package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock/internal/config"
	"penstock/internal/node"
)

func newSimCommand() *cobra.Command {
	var as node.SimServer
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Serve as vLLM, SGLang, TensorRT-LLM or llama.cpp does, around a simulated engine",
		Long: `Start one server that speaks as another engine does: its HTTP API, its KV-cache events
over ZeroMQ, its metrics, and on request its failures. Blocks, batches and events are
real, the time of a step is that of a model (--sim-timing), the text is a passage. It is
for tests of routers and adapters, and needs no accelerator.

What goes wrong is set with --fault, and while it runs with POST /admin/faults.
docs/sim-server.md has the endpoints, the faults and what is left out.`,
		Example: `  penstock sim --dialect vllm --http-addr 127.0.0.1:8001 --kv-events 'tcp://*:5557' --kv-replay 'tcp://*:5558' --export-model ./sim-model
  penstock sim --dialect sglang --http-addr 127.0.0.1:30000 --kv-events 'tcp://*:5560' --speedup 10
  penstock sim --dialect llamacpp --slots 8 --kv-cache-blocks 4096
  penstock sim --dialect vllm --fault 'stream_error,after=20,probability=0.05' --fault 'drop_events,probability=0.01'
  penstock sim --dialect vllm-legacy --http-addr 127.0.0.1:0 --json   # prints {"url":…} once it serves`,
		Args: checkArgs(noArgs),
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar((*string)(&as.Mock.Dialect), "dialect", "vllm", "engine to speak as: "+strings.Join(node.SimDialects(), ", "))
	fs.StringVar(&as.Mock.EngineVersion, "engine-version", "",
		"release of the engine, of dialect sglang: "+strings.Join(node.SimEngineVersions("sglang"), ", ")+"; empty is the newest")
	fs.StringVar(&as.Mock.HTTPAddr, "http-addr", "127.0.0.1:8000", "address of HTTP, HOST:PORT; port 0 picks a free one")
	fs.StringVar(&as.Mock.KVEvents, "kv-events", "", "endpoint that publishes KV-cache events, such as tcp://*:5557; rank i is i ports further; empty is none")
	fs.BoolVar(&as.Connect, "kv-dial", false, "connect to --kv-events, where a subscriber listens, instead of listening")
	fs.StringVar(&as.Mock.KVReplay, "kv-replay", "", "endpoint that sends the last batches of events again, such as tcp://*:5558")
	fs.StringVar(&as.Mock.Snapshot, "kv-snapshot", "", "endpoint that tells what is cached, as SGLang's does")
	fs.StringVar(&as.Mock.Topic, "kv-topic", "", "topic of the events")
	fs.IntVar(&as.Mock.BufferSteps, "kv-buffer-steps", 10_000, "batches of events kept for --kv-replay")
	fs.IntVar(&as.Mock.Ranks, "data-parallel-size", 1, "data-parallel ranks, each with a cache and events of its own")
	fs.IntVar(&as.Mock.Slots, "slots", 4, "slots of dialect llamacpp: requests served at once, and conversations kept")
	fs.StringArrayVar(&as.Adapters, "lora", nil, "LoRA adapter, NAME or NAME=PATH; repeatable")
	fs.StringArrayVar(&as.Faults, "fault", nil, "what goes wrong: KIND,count=N,skip=N,probability=P,after=TOKENS,min-tokens=N,status=N,for=DURATION, all but the kind optional; repeatable")
	fs.StringArrayVar(&as.Features, "feature", nil, "what this build of the engine has or lacks, NAME=on or NAME=off: tokens, details, metrics, dev, cumulative, extra-keys, uuids, map-events, push, binary-hashes, duplicates, offload, hybrid, jpeg-sequences, frame-sampling, round-up; repeatable")
	fs.StringArrayVar(&as.Headers, "response-header", nil, "header of every answer, NAME=VALUE; repeatable")
	fs.StringVar(&as.APIKeyFile, "api-key-file", "", "file with the key that requests must show")
	fs.DurationVar(&as.Mock.KeepAlive, "keep-alive", 5*time.Second, "time after which an idle connection is closed")
	fs.DurationVar(&as.Mock.Ping, "sse-ping", 30*time.Second, "silence after which dialect llamacpp writes a comment into a stream")
	fs.DurationVar(&as.Mock.Startup, "startup", 0, "time for which everything is answered with 503 first")
	fs.StringVar(&as.Family, "family", "", "family of the model that --export-model writes, by whose rules it shows images and videos: qwen2-vl; without, that model takes texts only")
	fs.StringArrayVar(&as.MediaLimits, "limit-mm-per-prompt", nil, "how many objects a prompt may show: image=N, video=N or audio=N (may be repeated)")
	fs.StringVar(&as.Mock.ProcessorArgs, "mm-processor-kwargs", "", "arguments with which the engine calls the processor of its media, a JSON object such as {\"max_pixels\":200704}, as vLLM's setting of that name")
	fs.StringVar((*string)(&as.Mock.ECRole), "ec-role", "", "role of dialect vllm for encoder outputs: producer, which encodes and generates nothing, consumer or both; empty is none")
	fs.StringVar(&as.Mock.ECStore, "ec-store", "", "directory of the encoder outputs, which producers and consumers share")
	fs.StringVar(&as.ExportModel, "export-model", "", "directory to write the built-in model's tokenizer to, which is then the model's root, where a frontend before it finds it")
	fs.BoolVar(&asJSON, "json", false, "print one line of JSON once ready, nothing else on standard output")
	settings := config.AddSimServerFlags(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := settings.Load()
		if as.ExportModel != "" && cfg != nil && cfg.Engine.ModelPath != "" {
			err = errors.Join(err, errors.New("export-model is about the built-in model, and model-path is given"))
		}
		if err = errors.Join(err, as.Validate()); err != nil {
			return usageError(err)
		}
		err = node.RunSim(cmd.Context(), cfg, as, cmd.ErrOrStderr(), func(r node.SimReady) {
			if asJSON {
				// A failed write is not a reason to stop serving.
				_ = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
				return
			}
			if wantsHumanText(cmd.ErrOrStderr(), cfg) {
				printSimGreeting(cmd.ErrOrStderr(), r)
			}
		})
		return reportExit(cmd.ErrOrStderr(), cfg, "sim stopped", err)
	}
	return cmd
}

// printSimGreeting prints what is served and how to put Penstock in front of it.
func printSimGreeting(w io.Writer, r node.SimReady) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n  A simulated %s serves %s on %s  (ready in %v)\n", r.Dialect, r.Model, r.URL, r.Took.Round(time.Millisecond))
	fmt.Fprintf(&b, "  %d KV blocks of %d tokens; model of time: %s\n", r.Blocks, r.BlockSize, r.Simulation)
	kind, spec := strings.TrimSuffix(r.Dialect, "-legacy"), ""
	if r.KVEvents != "" {
		fmt.Fprintf(&b, "  Events:   %s\n", r.KVEvents)
		spec = ",events=" + reachableEndpoint(r.KVEvents)
	}
	if r.KVReplay != "" {
		fmt.Fprintf(&b, "  Replay:   %s\n", r.KVReplay)
		spec += ",replay=" + reachableEndpoint(r.KVReplay)
	}
	fmt.Fprintf(&b, "  Use it:   penstock up --engine %s=%s%s --http-addr 127.0.0.1:9000\n", kind, r.URL, spec)
	fmt.Fprintf(&b, "  Faults:   curl %s/admin/faults -d '{\"faults\":[{\"kind\":\"stall\",\"after\":10,\"for\":\"5s\"}]}'\n", r.URL)
	b.WriteString("  Stop:     Ctrl-C\n\n")
	_, _ = io.WriteString(w, b.String()) // a failed write is not a reason to stop serving
}

// reachableEndpoint returns the endpoint as this machine dials it.
func reachableEndpoint(e string) string {
	for _, all := range []string{"//*:", "//0.0.0.0:", "//[::]:"} {
		e = strings.Replace(e, all, "//127.0.0.1:", 1)
	}
	return e
}
