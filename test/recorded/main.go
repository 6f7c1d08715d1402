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
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
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
