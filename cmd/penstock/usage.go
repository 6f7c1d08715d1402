package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/config"
)

// needCommands has every command that only groups others refuse what is none of them, and
// print its help without any.
func needCommands(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		needCommands(sub)
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = unknownCommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}

// newHelp returns the command that prints the help of another one.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Print the help of a command",
		Example: "  penstock help config show",
		RunE: func(cmd *cobra.Command, args []string) error {
			about := cmd.Root()
			for i, name := range args {
				sub, _, err := about.Find([]string{name})
				if err != nil || sub == about {
					return unknownCommand(about, args[i:])
				}
				about = sub
			}
			return about.Help()
		},
	}
}

// unknownCommand refuses the first of args, which is no command of cmd.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	// The whole command but for the program's name, as in "config show".
	of := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
	whole := func(name string) string { return strings.TrimSpace(of + " " + name) }
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	hint := ""
	if best := config.Closest(args[0], names); best != "" {
		hint = fmt.Sprintf("did you mean %q?", whole(best))
	}
	return misuse(cmd, fmt.Sprintf("unknown command %q", whole(args[0])), hint)
}

// misuse is an error of the command line: what is wrong, what was perhaps meant ("" if
// that is not known), and where the help is.
func misuse(cmd *cobra.Command, what, hint string) error {
	help := fmt.Sprintf("see \"%s --help\"", cmd.CommandPath())
	switch {
	case strings.HasSuffix(hint, "?"):
		what += "; " + hint + " S" + help[1:]
	case hint != "":
		what += "; " + hint + ". S" + help[1:]
	default:
		what += "; " + help
	}
	return usage(errors.New(what))
}

// flagError explains why flags could not be parsed.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return misuse(cmd, config.FlagError(err).Error(), "")
	}
	name, given := unknown.GetSpecifiedName(), "--"+unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, _, _ = strings.Cut(short, "=")
		given = "-" + name
	}
	return misuse(cmd, fmt.Sprintf("unknown flag: %s", given), flagHint(cmd, name, strings.HasPrefix(given, "--")))
}

// minPrefix is how many characters of a flag say which one was meant.
const minPrefix = 3

// flagHint says what was perhaps meant by a flag that cmd lacks; "" if nothing is like it.
func flagHint(cmd *cobra.Command, name string, long bool) string {
	if has := commandsWith(cmd.Root(), name); long && len(has) > 0 {
		last := len(has) - 1
		if last == 0 {
			return "it is a flag of " + has[0]
		}
		return fmt.Sprintf("it is a flag of %s and %s", strings.Join(has[:last], ", "), has[last])
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	best := config.Closest(name, names)
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name) }); i >= 0 && len(name) >= minPrefix {
		best = names[i] // the beginning of a flag was given
	}
	switch {
	case best != "":
		return fmt.Sprintf("did you mean --%s?", best)
	case !long:
		return "flags have two dashes"
	}
	return ""
}

// commandsWith lists the commands that have a flag, except commands which take the settings of
// all other commands.
func commandsWith(root *cobra.Command, flag string) (names []string) {
	for _, cmd := range root.Commands() {
		if cmd.Flags().Lookup(flag) != nil && cmd.Flags().Lookup("for") == nil {
			names = append(names, cmd.Name())
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

// rank puts the roles first, as the settings name them.
func rank(command string) int {
	if i := slices.Index(config.Commands(), config.Command(command)); i >= 0 {
		return i
	}
	return len(config.Commands())
}

// args turns a check of the arguments into one that marks its error as usage.
//
// A flag that may stand without a value takes the word behind it for none, which
// is then the argument that is too many.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		if name := switched(cmd); name != "" {
			return usage(fmt.Errorf("%q is no argument of \"%s\": a value of --%s follows an =, as in --%s=%s", args[0], cmd.CommandPath(), name, name, args[0]))
		}
		return misuse(cmd, err.Error(), "")
	}
}

// none refuses arguments.
func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q is too much: \"%s\" takes no arguments", args[0], cmd.CommandPath())
	}
	return nil
}

// switched returns the name of a flag that was given without the value that it may have, if any was.
func switched(cmd *cobra.Command) (name string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal && f.Value.Type() != "bool" {
			name = f.Name
		}
	})
	return name
}
