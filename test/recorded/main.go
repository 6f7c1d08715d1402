// Command recorded serves recordings: the whole of Penstock from HTTP to workers, with an engine which plays
// responses in the formats of several model families. Clients tested against it see tool calls, reasoning,
// truncation and failures whose every byte is known, which no model with random weights would write.
//
//	go run ./test/recorded -recordings test/interop/recordings
//
// There is one model for each directory of recordings; a user message with play:NAME gets the recording of
// that name.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
)

func main() {
	addr := flag.String("http-addr", "127.0.0.1:0", "where to serve HTTP")
	dir := flag.String("recordings", "test/interop/recordings", "directory with a directory of recordings for each model")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runServer(ctx, *addr, *dir, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "recorded:", err)
		os.Exit(1)
	}
}

// runServer serves until ctx ends. Once every model is ready it prints one line of JSON, as "penstock up
// --json" does.
func runServer(ctx context.Context, addr, dir string, out, log io.Writer) error {
	scratch, err := os.MkdirTemp("", "recorded-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	dialects, err := loadDialects(os.DirFS(dir))
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	defer ln.Close() // the frontend closes it too, once it runs
	s, err := buildSystem(dialects, scratch, log)
	if err != nil {
		return err
	}
	return s.serveUntilDone(ctx, ln, func() {
		// A closed output is not a reason to stop serving.
		_ = json.NewEncoder(out).Encode(map[string]any{"url": "http://" + ln.Addr().String(), "models": len(dialects)})
	})
}

// chatTemplate is the template of all dialects, which differ in how the assistant's response starts. Its
// files stand in for a checkpoint's.
//
//go:embed chat.jinja
var chatTemplate string

// openPipeline writes the tokenizer and the chat template of a dialect into dir, as in a checkpoint, and
// opens them from there. The vocabulary is the built-in one, in which the markup of every dialect is plain
// text.
func openPipeline(d *dialect, dir string) (*prep.Pipeline, engine.TokenizerRef, error) {
	tokenizer, config := token.BuiltinFiles()
	// These Go literals are valid in Jinja2.
	template := `{%- set opening = ` + strconv.Quote(d.Opening) + ` %}{% set silent = ` + strconv.Quote(d.Silent) + " %}" + chatTemplate
	for name, contents := range map[string][]byte{
		"tokenizer.json": tokenizer, "tokenizer_config.json": config, "chat_template.jinja": []byte(template),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), contents, 0o600); err != nil {
			return nil, engine.TokenizerRef{}, err
		}
	}
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		return nil, engine.TokenizerRef{}, err
	}
	return pipe, engine.TokenizerRef{Kind: "dir", Dir: dir, Digest: pipe.Digest}, nil
}
