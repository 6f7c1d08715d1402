package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"penstock/internal/replay"
	"penstock/internal/replay/report"
)

func newCompareCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare A.json B.json",
		Short: "Compare two results of replay or bench",
		Long: `Compare the results in two files, as "replay --json" and "bench --json" print them:
rows of the same policy and number of workers side by side, what B has more or less
of than A, and what to know before believing it. Two results of one row each are
compared whatever they are called, such as a replay with what a server did.`,
		Example: `  penstock bench --url http://127.0.0.1:8000 --requests 1000 --json > before.json
  penstock bench --url http://127.0.0.1:8000 --requests 1000 --json > after.json
  penstock bench compare before.json after.json`,
		Args: checkArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, names []string) error {
			a, err := readResult(names[0])
			if err != nil {
				return usageError(err)
			}
			b, err := readResult(names[1])
			if err != nil {
				return usageError(err)
			}
			c := report.Compare(a, b)
			if asJSON {
				return c.WriteJSON(cmd.OutOrStdout())
			}
			return c.WriteTable(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// readResult reads the result in a file.
func readResult(name string) (*replay.Result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := report.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}
