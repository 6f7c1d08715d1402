package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"penstock/internal/config"
	"penstock/internal/node"
)

// queueTimeout bounds the work of a command on queues.
const queueTimeout = time.Minute

// queueTarget is which queues a command is about, and where they are.
type queueTarget struct {
	flags     *config.Flags
	namespace string
	queue     string // "" is every queue
	asJSON    bool
}

// addQueueFlags defines the flags of a command on queues.
func addQueueFlags(cmd *cobra.Command, t *queueTarget) {
	t.flags = config.AddFlagsOf(cmd.Flags(),
		"nats", "nats-creds", "nats-token-file", "nats-tls-ca", "nats-tls-cert", "nats-tls-key", "namespace", "component")
	addConfigFlag(cmd)
	cmd.Flags().StringVar(&t.queue, "queue", "", "only this queue; empty is every queue of the component")
	cmd.Flags().BoolVar(&t.asJSON, "json", false, "print JSON")
}

// open connects to the NATS server of the settings.
func (t *queueTarget) open(cmd *cobra.Command) (*node.PrefillQueues, error) {
	path, _ := cmd.Flags().GetString("config")
	l, err := config.Load(path, os.Environ(), t.flags)
	switch {
	case err != nil:
		return nil, usageError(err)
	case l.Events.Plane == config.PlaneZMQ:
		return nil, usageError(errors.New("with event-plane zmq there are no queues: prefill jobs go to the prefill workers by calls"))
	case l.NATS.URLs == "" && l.NATS.Listen == "":
		return nil, usageError(errors.New("nats: the queues are in the fleet's NATS server: name it with --nats nats://HOST:PORT; a fleet without NATS has none"))
	}
	t.namespace = fmt.Sprintf("namespace %s, component %s", l.Fleet.Namespace, l.Fleet.Component)
	return node.OpenPrefillQueues(l)
}

// runOnQueues calls f with the queues of the command line.
func (t *queueTarget) runOnQueues(cmd *cobra.Command, f func(ctx context.Context, queues *node.PrefillQueues, names []string) error) error {
	queues, err := t.open(cmd)
	if err != nil {
		return err
	}
	defer queues.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), queueTimeout)
	defer cancel()
	names, err := queues.Names(ctx)
	if err != nil {
		return fmt.Errorf("%w (penstock doctor checks the server)", err)
	}
	if t.queue == "" {
		return f(ctx, queues, names)
	}
	if !slices.Contains(names, t.queue) {
		return fmt.Errorf("no queue %.100q in %s: there are %s; look elsewhere with --namespace and --component",
			t.queue, t.namespace, cmp.Or(abbreviateList(names, "queues"), "none"))
	}
	return f(ctx, queues, []string{t.queue})
}

func newQueueCommand() *cobra.Command {
	var t queueTarget
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "List the queues of prefill jobs: waiting, in progress, dead, age of the oldest",
		Long: `List the queues of prefill jobs in the fleet's NATS server, one for each model and
layout of KV blocks whose prompts prefill workers compute. WAITING jobs have had no worker yet,
those IN PROGRESS have, or wait for another one, and DEAD ones had all attempts. OLDEST is the
age of the oldest job which is not dead. It changes nothing.`,
		Example: `  penstock queue --nats nats://10.0.0.5:4222
  penstock queue dead --nats nats://10.0.0.5:4222
  penstock queue drop --all --nats nats://10.0.0.5:4222`,
		Args: rejectUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.runOnQueues(cmd, func(ctx context.Context, queues *node.PrefillQueues, names []string) error {
				rows := make([]node.PrefillQueueState, len(names))
				for i, name := range names {
					var err error
					if rows[i], err = queues.Describe(ctx, name); err != nil {
						return err
					}
				}
				if t.asJSON {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"rows": rows})
				}
				return printQueues(cmd.OutOrStdout(), rows, t.namespace)
			})
		},
	}
	addQueueFlags(cmd, &t)
	cmd.AddCommand(newQueueDeadCommand(), newQueueDropCommand())
	return cmd
}

func printQueues(w io.Writer, rows []node.PrefillQueueState, namespace string) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintf(w, "no queues of prefill jobs in %s\n", namespace)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "QUEUE\tWAITING\tIN PROGRESS\tDEAD\tOLDEST")
	for _, r := range rows {
		oldest := "-"
		if r.Oldest != nil {
			oldest = formatAge(*r.Oldest)
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\n", r.Queue, r.Waiting, r.Started, r.Dead, oldest)
	}
	return tw.Flush()
}

// formatAge formats seconds.
func formatAge(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// defaultDeadLimit is how many dead letters are shown unless --limit says otherwise.
const defaultDeadLimit = 100

func newQueueDeadCommand() *cobra.Command {
	var t queueTarget
	var limit int
	cmd := &cobra.Command{
		Use:   "dead",
		Short: "List the dead letters: prefill jobs which had all attempts",
		Long: `List the prefill jobs which prefill workers gave up: they had all attempts, and none ended
them. Their requests did not fail: the decode workers computed the prompts themselves. A dead
letter has no prompt, neither tokens nor text. One whose bytes are no job is unreadable. The
oldest come first; AGE is the time since the job died, at most a day.`,
		Example: `  penstock queue dead --nats nats://10.0.0.5:4222
  penstock queue dead --nats nats://10.0.0.5:4222 --limit 0 --json`,
		Args: checkArgs(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usageError(fmt.Errorf("--limit: %d is negative; 0 shows all", limit))
			}
			return t.runOnQueues(cmd, func(ctx context.Context, queues *node.PrefillQueues, names []string) error {
				rows, left := []node.DeadPrefill{}, 0
				for _, name := range names {
					dead, err := queues.ListDead(ctx, name)
					if err != nil {
						return err
					}
					shown := len(dead)
					if limit > 0 {
						shown = min(shown, limit-len(rows))
					}
					rows, left = append(rows, dead[:shown]...), left+len(dead)-shown
				}
				if t.asJSON {
					return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"rows": rows, "left_out": left})
				}
				return printDead(cmd.OutOrStdout(), rows, left, t.namespace)
			})
		},
	}
	addQueueFlags(cmd, &t)
	cmd.Flags().IntVar(&limit, "limit", defaultDeadLimit, "show at most this many; 0 shows all")
	return cmd
}

func printDead(w io.Writer, rows []node.DeadPrefill, left int, namespace string) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintf(w, "no dead letters in %s\n", namespace)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "JOB\tQUEUE\tMODEL\tREQUEST\tDECODE WORKER\tATTEMPTS\tREASON\tAGE")
	for i := range rows {
		r := &rows[i]
		decode, reason := strconv.FormatUint(r.DecodeWorker, 10), "no attempt succeeded"
		if r.Unreadable {
			decode, reason = "-", fmt.Sprintf("unreadable, %d bytes", r.Bytes)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", printable(r.ID), r.Queue, abbreviateCell(r.Model),
			abbreviateCell(r.RequestID), decode, r.Attempts, reason, formatAge(r.Age))
	}
	if left > 0 {
		fmt.Fprintf(tw, "… %d more: --limit 0 shows all\n", left)
	}
	return tw.Flush()
}

// abbreviateCell returns text from outside for one cell of a table; "-" if it is empty.
func abbreviateCell(s string) string {
	const most = 64 // characters
	s = printable(s)
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most-1]) + "…"
	}
	return cmp.Or(s, "-")
}

func newQueueDropCommand() *cobra.Command {
	var t queueTarget
	var all bool
	cmd := &cobra.Command{
		Use:   "drop ID... | --all",
		Short: "Drop dead letters",
		Long: `Drop the dead letters with the given ids, or all, and say how many they were. With an id
which is not there the others are dropped, and the exit code is 1. Jobs which are not dead stay.`,
		Example: `  penstock queue drop 8213.0.1764482400000.17 --nats nats://10.0.0.5:4222
  penstock queue drop --all --nats nats://10.0.0.5:4222`,
		Args: checkArgs(func(_ *cobra.Command, ids []string) error {
			switch {
			case all && len(ids) > 0:
				return errors.New("give ids of dead letters or --all, not both")
			case !all && len(ids) == 0:
				return errors.New("give the ids of dead letters, which penstock queue dead lists, or --all")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return t.runOnQueues(cmd, func(ctx context.Context, queues *node.PrefillQueues, names []string) error {
				count, missing := 0, slices.Clone(ids)
				var failed error
				for _, name := range names {
					dropped, err := queues.DropDead(ctx, name, ids)
					count += len(dropped)
					missing = slices.DeleteFunc(missing, func(id string) bool { return slices.Contains(dropped, id) })
					if failed = err; err != nil {
						break
					}
				}
				if err := printDropped(cmd.OutOrStdout(), count, t.asJSON); err != nil || failed != nil {
					return errors.Join(err, failed)
				}
				if len(missing) > 0 {
					return fmt.Errorf("no dead letter %s in %s: penstock queue dead lists them", abbreviateList(missing, "ids"), t.namespace)
				}
				return nil
			})
		},
	}
	addQueueFlags(cmd, &t)
	cmd.Flags().BoolVar(&all, "all", false, "drop all dead letters")
	return cmd
}

func printDropped(w io.Writer, count int, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(map[string]int{"dropped": count})
	}
	plural := "s"
	if count == 1 {
		plural = ""
	}
	_, err := fmt.Fprintf(w, "dropped %d dead letter%s\n", count, plural)
	return err
}
