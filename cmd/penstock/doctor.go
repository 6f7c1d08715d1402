package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"penstock/internal/doctor"

	"github.com/spf13/cobra"

	"penstock/internal/config"
)

// errChecksFailed is the error of doctor if a check failed.
var errChecksFailed = errors.New("something does not work; what to do stands with each check")

func newDoctorCommand() *cobra.Command {
	var asJSON bool
	var t serverTarget
	var command string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check settings, this machine and the running fleet, and say what to do",
		Long: `Check what a process with these settings needs and what it would meet: valid
settings, free ports, memory, open files, engines that run already, with their
tokenizers and events, the NATS server and JetStream, discovery, every worker (by a ping over the request plane), and, through a running process with HTTP, its
workers and how it follows their caches. It changes nothing.

Each check is ok, warn or fail. The exit code is 1 if any failed, 2 if the settings did.`,
		Example: `  penstock doctor                                          # before or beside "penstock up"
  penstock doctor --server http://127.0.0.1:9000
  penstock doctor --server http://10.0.0.5:8000 --timeout 20s # over a slow network
  penstock doctor --engine vllm=http://a:8000,events=tcp://a:5557
  penstock doctor --for worker --nats nats://10.0.0.5:4222 --data-dir ./worker-1
  penstock doctor --for frontend --nats nats://127.0.0.1:4222 --json`,
		Args: checkArgs(noArgs),
	}
	flags := addAllFlags(cmd, &command)
	t.addCAFlag(cmd)
	t.addServerFlag(cmd, "server", "", "URL of a running process to ask; without it the one at http-addr, if one is there")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().DurationVar(&timeout, "timeout", doctor.DefaultTimeout, "how long another process may take for an answer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := flags.SetCommand(command); err != nil {
			return usageError(err)
		}
		if timeout <= 0 {
			return usageError(fmt.Errorf("--timeout %v: it must be positive, as 10s", timeout))
		}
		// The key file of a server holds a key which this client can use.
		t.keyFile, _ = cmd.Flags().GetString("api-key-file")
		c, err := t.newClient()
		if err != nil {
			return err
		}
		path, _ := cmd.Flags().GetString("config")
		l, err := config.Load(path, os.Environ(), flags)
		found := doctor.Examine(cmd.Context(), doctor.Examination{Config: l, Invalid: err, Server: c.server, HTTP: c.http, Key: c.key, Timeout: timeout})
		if err := printFindings(cmd.OutOrStdout(), found, asJSON); err != nil {
			return err
		}
		return findingsError(found)
	}
	return cmd
}

// findingsError returns the error for findings; nil if no check failed. Invalid settings are a usage error,
// as for every command which has them.
func findingsError(found []doctor.Finding) error {
	var err error
	for _, f := range found {
		switch {
		case f.Status != doctor.CheckFail:
		case f.Check == doctor.CheckConfig:
			return usageError(errChecksFailed)
		default:
			err = errChecksFailed
		}
	}
	return err
}

// printFindings writes a line for each check, and below it the remedy if there is a problem.
func printFindings(w io.Writer, found []doctor.Finding, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(map[string]any{"rows": found})
	}
	width := 0
	for _, f := range found {
		width = max(width, len(f.Check))
	}
	for _, f := range found {
		if _, err := fmt.Fprintf(w, "%-4s  %-*s  %s\n", f.Status, width, f.Check, f.Detail); err != nil {
			return err
		}
		if f.Remedy != "" {
			if _, err := fmt.Fprintf(w, "      %-*s  -> %s\n", width, "", f.Remedy); err != nil {
				return err
			}
		}
	}
	return nil
}
