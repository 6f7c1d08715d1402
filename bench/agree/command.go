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

// seedAfterProbe is a router seed. Before bench starts it requests one token from the server, which takes the
// router's first draw; from the second on, the draws of this seed equal the draws of seed 1 from the first
// on, which replay has.
const seedAfterProbe = 588337626299462281

// penstockServer is a running "penstock up".
type penstockServer struct {
	cmd *exec.Cmd
	url string
}

// startServer starts a server of simulated engines and returns when it is ready.
func (s *agreeSettings) startServer(workers int, flags ...string) (*penstockServer, error) {
	args := append([]string{
		"up", "--engine", "sim", "--workers", strconv.Itoa(workers), "--router-seed", strconv.FormatInt(seedAfterProbe, 10),
		"--http-addr", "127.0.0.1:0", "--json", "--log-level", "warn",
	}, flags...)
	cmd := s.newCommand(context.Background(), args)
	says, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	srv := &penstockServer{cmd: cmd}
	var ready struct {
		URL string `json:"url"`
	}
	if err := json.NewDecoder(says).Decode(&ready); err != nil {
		return nil, errors.Join(fmt.Errorf("penstock up: it ended before it was ready: %w", err), srv.stopServer())
	}
	srv.url = ready.URL
	return srv, nil
}

// stopServer stops the server.
func (v *penstockServer) stopServer() error {
	if err := v.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(err, v.cmd.Wait())
	}
	return v.cmd.Wait()
}

// newCommand is a command of the binary.
func (s *agreeSettings) newCommand(ctx context.Context, args []string) *exec.Cmd {
	all := append(append([]string{}, s.command...), args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Stderr = os.Stderr
	return cmd
}

// runAndReadRow runs bench or replay and returns its only row.
func (s *agreeSettings) runAndReadRow(ctx context.Context, args ...string) (*replay.Row, error) {
	cmd := s.newCommand(ctx, append(args, "--json"))
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
