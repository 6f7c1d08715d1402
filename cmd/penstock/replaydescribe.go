package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"penstock/internal/replay"
	"penstock/internal/replay/trace"
)

// workloadDescription describes a workload without running it.
type workloadDescription struct {
	trace.Summary
	Ideals []replay.Ideal `json:"ideals"`
}

// describeWorkload prints the contents of the workload, and the ideals of all cache sizes.
func (f *replayFlags) describeWorkload(cmd *cobra.Command, all *scenarios, work *timedWorkload) error {
	if f.csv != "" || f.html != "" {
		return usageError(errors.New("--describe runs nothing that --csv and --report could write of"))
	}
	summary, err := trace.Describe(work)
	if err != nil {
		return err
	}
	d := workloadDescription{Summary: summary}
	for _, size := range all.sizes {
		ideals, err := all.computeIdeals(cmd.Context(), work, size)
		if err != nil {
			return explainInterrupt(err)
		}
		d.Ideals = append(d.Ideals, ideals...)
	}
	if f.json {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(d)
	}
	return d.printText(cmd.OutOrStdout())
}

// printText writes the description as text.
func (d *workloadDescription) printText(out io.Writer) error {
	if _, err := d.WriteTo(out); err != nil {
		return err
	}
	fmt.Fprint(out, "\nPrompt tokens that one cache could have had, prompt after prompt:\n\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "WORKERS\tBLOCKS EACH\tTOKENS A BLOCK\tMILLION TOKENS IN ALL\tCACHED\tUNBOUNDED\t")
	for _, i := range d.Ideals {
		fmt.Fprintf(t, "%d\t%d\t%d\t%.3f\t%s\t%s\t\n", i.Workers, i.Blocks, i.BlockSize, float64(i.Workers)*float64(i.Blocks)*float64(i.BlockSize)/1e6,
			formatShare(i.SameCapacity), formatShare(i.Infinite))
	}
	return t.Flush()
}

// formatShare formats a share; "~" marks an estimate.
func formatShare(s replay.Share) string {
	text := fmt.Sprintf("%.1f %%", 100*s.CachedShare)
	if s.Estimated {
		return "~" + text
	}
	return text
}
