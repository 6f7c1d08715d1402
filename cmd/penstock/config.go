package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/config"
)

// loadConfig merges file, environment and the flags of cmd.
func loadConfig(cmd *cobra.Command, flags *config.Flags) (*config.Loaded, error) {
	path, _ := cmd.Flags().GetString("config")
	l, err := config.Load(path, os.Environ(), flags)
	if err == nil {
		if l.Command != config.PlannerCommand { // a planner has its model of time from the simulated engine
			err = rejectIdleFlags(cmd.Flags(), l.EngineKind())
		}
		err = errors.Join(err, rejectIdleExecFlags(cmd.Flags(), l))
	}
	return l, usageError(err)
}

// rejectIdleFlags refuses flags of the simulated engine if another engine is configured, and flags of
// built-in engines if the engines are external: the user expects an effect. In a file such settings are
// allowed, because other commands read it too.
func rejectIdleFlags(fs *pflag.FlagSet, engine string) (err error) {
	local := map[string]string{
		"workers":                "they have one worker for each data-parallel rank (ranks=N)",
		"model":                  "clients call theirs by the name that the engine gives it, or name=NAME",
		"kv-cache-blocks":        "it is found out",
		"max-num-batched-tokens": "the engine has a setting of its own",
	}
	fs.Visit(func(f *pflag.Flag) {
		why := local[f.Name]
		switch {
		case err != nil:
		case strings.HasPrefix(f.Name, "sim-") && engine != config.EngineSim:
			err = fmt.Errorf("--%s is about --engine sim, and the engine is %s", f.Name, engine)
		case why != "" && slices.Contains(config.RemoteKinds(), engine):
			err = fmt.Errorf("--%s says nothing of engines that run already: %s; leave it out", f.Name, why)
		}
	})
	return err
}

// rejectIdleExecFlags refuses flags about an engine which is not started here.
func rejectIdleExecFlags(fs *pflag.FlagSet, l *config.Loaded) (err error) {
	fs.Visit(func(f *pflag.Flag) {
		if isExecFlag := strings.HasPrefix(f.Name, "exec-") || f.Name == "dialect"; err == nil && isExecFlag && len(l.ExecCommand) == 0 && fs.Lookup("exec") != nil {
			err = fmt.Errorf("--%s is about an engine that the worker starts: add --exec -- and the engine's command, or leave it out", f.Name)
		}
	})
	return err
}

func addConfigFlag(cmd *cobra.Command) {
	cmd.Flags().String("config", "", "configuration file (env "+config.EnvFile+")")
}

// addAllFlags defines the settings of every command, and --for, which names one.
func addAllFlags(cmd *cobra.Command, command *string) *config.Flags {
	flags := config.AddAllFlags(cmd.Flags())
	addConfigFlag(cmd)
	groupHelp(cmd)
	cmd.Flags().StringVar(command, "for", string(config.Up), "command whose settings they are: up, frontend, worker, router or planner")
	return flags
}

// loadConfigFor is loadConfig for the settings of the command given by --for.
func loadConfigFor(cmd *cobra.Command, command string, flags *config.Flags) (*config.Loaded, error) {
	if err := flags.SetCommand(command); err != nil {
		return nil, usageError(err)
	}
	return loadConfig(cmd, flags)
}

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Show or check the effective configuration",
		Example: "  penstock config show\n  penstock config validate --config penstock.yaml",
	}
	cmd.AddCommand(newConfigShowCommand(), newConfigValidateCommand())
	return cmd
}

func newConfigShowCommand() *cobra.Command {
	var asJSON bool
	var t serverTarget
	var command string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print every setting with its value and where it came from",
		Example: `  penstock config show --config penstock.yaml
  PENSTOCK_WORKERS=4 penstock config show --router-mode random
  penstock config show --for worker --nats nats://127.0.0.1:4222
  penstock config show --server http://127.0.0.1:8000   # of a running process`,
		Args: checkArgs(noArgs),
	}
	flags := addAllFlags(cmd, &command)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	t.addServerFlag(cmd, "server", "", "URL of a running process to ask instead")
	t.addCAFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var rows struct {
			Rows []config.Setting `json:"rows"`
		}
		var invalid error
		if t.isNamed() {
			if err := allowOnlyFlags(cmd, "server", "json", "api-key-file", "ca"); err != nil {
				return err
			}
			// This setting is the key file of a server; a user who can read it can use its keys.
			t.keyFile, _ = cmd.Flags().GetString("api-key-file")
			c, err := t.newClient()
			if err != nil {
				return err
			}
			if err := c.getJSON(cmd.Context(), "/v1/config", &rows); err != nil {
				return err
			}
		} else {
			if err := flags.SetCommand(command); err != nil {
				return usageError(err)
			}
			path, _ := cmd.Flags().GetString("config")
			// Invalid settings are shown too: the user asks where they come from.
			l, err := config.Read(path, os.Environ(), flags)
			rows.Rows, invalid = l.Settings(), usageError(err)
		}
		if asJSON {
			return errors.Join(json.NewEncoder(cmd.OutOrStdout()).Encode(rows), invalid)
		}
		return errors.Join(printSettings(cmd.OutOrStdout(), rows.Rows), invalid)
	}
	return cmd
}

// allowOnlyFlags refuses a command line with flags other than the given ones.
func allowOnlyFlags(cmd *cobra.Command, names ...string) error {
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(names, f.Name) {
			err = usageError(fmt.Errorf("--%s has no effect on what --%s shows; leave one of them out", f.Name, names[0]))
		}
	})
	return err
}

// printSettings writes the settings as a YAML file which would give the same tree, with the origin of each
// value as a comment.
func printSettings(w io.Writer, rows []config.Setting) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range rows {
		value, err := json.Marshal(s.Value) // JSON scalars and lists are YAML
		if err != nil {
			return err
		}
		fmt.Fprintf(tw, "%s: %s\t# %s\n", s.Key, value, s.Origin)
	}
	return tw.Flush()
}

func newConfigValidateCommand() *cobra.Command {
	var asJSON bool
	var command string
	cmd := &cobra.Command{
		Use:     "validate",
		Short:   "Check file, environment and flags, and report everything wrong at once",
		Example: "  penstock config validate --config penstock.yaml\n  penstock config validate --for frontend --config penstock.yaml",
		Args:    checkArgs(noArgs),
	}
	flags := addAllFlags(cmd, &command)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, err := loadConfigFor(cmd, command, flags)
		if asJSON {
			answer := struct {
				Valid    bool     `json:"valid"`
				Problems []string `json:"problems"`
			}{err == nil, []string{}}
			if err != nil {
				answer.Problems = strings.Split(err.Error(), "\n")
			}
			if e := json.NewEncoder(cmd.OutOrStdout()).Encode(answer); e != nil {
				return e
			}
			return err
		}
		if err == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "configuration is valid")
		}
		return err
	}
	return cmd
}
