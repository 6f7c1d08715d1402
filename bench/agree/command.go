package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"penstock/internal/replay"
	"penstock/internal/replay/report"
)

// afterProbe is a seed of the router. Before bench begins it asks the server for one
// token, which takes the first draw of the router's; those of this seed are from the
// second on what those of seed 1, which replay has, are from the first on.
const afterProbe = 588337626299462281

// server is a running "penstock up".
type server struct {
	cmd *exec.Cmd
	url string
}

// serve starts a server of simulated engines and returns when it serves.
func (s *settings) serve(workers int, flags ...string) (*server, error) {
	args := append([]string{
		"up", "--engine", "sim", "--workers", strconv.Itoa(workers), "--router-seed", strconv.FormatInt(afterProbe, 10),
		"--http-addr", "127.0.0.1:0", "--json", "--log-level", "warn",
	}, flags...)
	cmd := s.process(context.Background(), args)
	says, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	srv := &server{cmd: cmd}
	var ready struct {
		URL string `json:"url"`
	}
	if err := json.NewDecoder(says).Decode(&ready); err != nil {
		return nil, errors.Join(fmt.Errorf("penstock up: it ended before it was ready: %w", err), srv.stop())
	}
	srv.url = ready.URL
	return srv, nil
}

// stop ends the server.
func (v *server) stop() error {
	if err := v.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(err, v.cmd.Wait())
	}
	return v.cmd.Wait()
}

// process is one of the binary.
func (s *settings) process(ctx context.Context, args []string) *exec.Cmd {
	all := append(append([]string{}, s.command...), args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Stderr = os.Stderr
	return cmd
}

// measure runs bench or replay and returns its only row.
func (s *settings) measure(ctx context.Context, args ...string) (*replay.Row, error) {
	cmd := s.process(ctx, append(args, "--json"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("penstock %s: %w\n%s", args[0], err, stderr.Bytes())
	}
	result, err := report.Read(bytes.NewReader(out))
	if err != nil {
		return nil, err
	}
	if len(result.Rows) != 1 {
		return nil, fmt.Errorf("penstock %s: %d rows, want one", args[0], len(result.Rows))
	}
	return &result.Rows[0], nil
}
