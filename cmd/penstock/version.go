package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"penstock/internal/node"
)

// version is the version of the code, however it is built; CHANGELOG.md describes it. Between two releases it
// is the last release, and the commit identifies the build.
const version = "0.1.0"

type versionInfo struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit"`
	Modified bool     `json:"modified"`
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	Features []string `json:"features"`
}

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit, Go version and features",
		Example: "  penstock version\n  penstock version --json",
		Args:    checkArgs(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := readVersion()
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			commit := v.Commit
			if v.Modified {
				commit += " and changes"
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "penstock %s\ncommit    %s\ngo        %s %s\nfeatures  %v\n",
				v.Version, commit, v.Go, v.Platform, v.Features)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func readVersion() versionInfo {
	v := versionInfo{
		Version: version, Commit: "unknown", Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Features: node.Features(),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
