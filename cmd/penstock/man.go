//go:build man

package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the command which writes the man pages of all commands. Only builds with the tag man have it, for
// tools/release.sh: its modules are not part of the released binary.
func newManCommand() *cobra.Command {
	var seconds int64
	cmd := &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the man pages of all commands",
		Example: "  penstock man --time 1700000000 ./man1",
		Args:    checkArgs(cobra.ExactArgs(1)),
		Hidden:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			date := time.Unix(seconds, 0).UTC()
			root := cmd.Root()
			root.DisableAutoGenTag = true // it has the date of today
			return doc.GenManTree(root, &doc.GenManHeader{Title: "PENSTOCK", Section: "1", Date: &date, Source: "Penstock " + version, Manual: "Penstock"}, args[0])
		},
	}
	cmd.Flags().Int64Var(&seconds, "time", 0, "date of the pages, in seconds since 1970")
	return cmd
}

func optionalCommands() []*cobra.Command { return []*cobra.Command{newManCommand()} }
