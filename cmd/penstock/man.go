//go:build man

package main

import (
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the command which writes the man pages of all commands. Only builds with the tag man have it, for
// tools/release.sh: its modules are not part of the released binary.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the man pages of all commands, with the date of $SOURCE_DATE_EPOCH",
		Example: "  SOURCE_DATE_EPOCH=1700000000 penstock man ./man1",
		Args:    checkArgs(cobra.ExactArgs(1)),
		Hidden:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
			if err != nil {
				return usageError(err)
			}
			date := time.Unix(seconds, 0).UTC()
			root := cmd.Root()
			root.DisableAutoGenTag = true // it has the date of today
			return doc.GenManTree(root, &doc.GenManHeader{Title: "PENSTOCK", Section: "1", Date: &date, Source: "Penstock " + version, Manual: "Penstock"}, args[0])
		},
	}
}

func optionalCommands() []*cobra.Command { return []*cobra.Command{newManCommand()} }
