package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/config"
)

// requireSubcommands makes every command which only groups others refuse unknown subcommands, and print its
// help without any. It gives every command its flag --help.
func requireSubcommands(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		requireSubcommands(sub)
	}
	plainHelp(cmd)
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = rejectUnknownCommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}

// newHelpCommand returns the command which prints the help of another one.
func newHelpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Print the help of a command",
		Example: "  penstock help config show",
		RunE: func(cmd *cobra.Command, args []string) error {
			about := cmd.Root()
			for i, name := range args {
				sub, _, err := about.Find([]string{name})
				if err != nil || sub == about {
					return rejectUnknownCommand(about, args[i:])
				}
				about = sub
			}
			return about.Help()
		},
	}
	plainHelp(cmd) // cobra adds this command after requireSubcommands
	return cmd
}

// allGroups is the value of --help which shows the settings of every group.
const allGroups = "all"

// helpFlag is the flag --help: it may name the group of flags which the help of a command with settings shows.
// Its type is bool, because cobra asks for the flag's value as a bool.
type helpFlag struct {
	given bool
	group string
	plain bool // the command's flags have no groups: all of them are shown
}

func (h *helpFlag) String() string { return strconv.FormatBool(h.given) }
func (h *helpFlag) Type() string   { return "bool" }

func (h *helpFlag) Set(group string) error {
	if group == "true" { // the flag was given without a value
		group = config.CommonGroup
	}
	names := groupNames()
	if !slices.Contains(names, group) {
		return fmt.Errorf("%.100q is not one of %s", group, strings.Join(names, ", "))
	}
	if h.plain && group != config.CommonGroup && group != allGroups {
		return errors.New("the flags of this command have no groups: --help shows all of them")
	}
	h.given, h.group = true, group
	return nil
}

// plainHelp lets --help=all print the help of a command whose flags have no groups, as --help does.
func plainHelp(cmd *cobra.Command) {
	if cmd.Flags().Lookup("help") == nil {
		cmd.Flags().VarPF(&helpFlag{plain: true}, "help", "h", "help for "+cmd.DisplayName()).NoOptDefVal = "true"
	}
}

// groupNames lists the values of --help.
func groupNames() []string {
	var names []string
	for _, g := range config.Groups() {
		names = append(names, g.Name)
	}
	return append(names, allGroups)
}

// groupHelp makes the help of a command with settings show the settings of one group, or of all by group.
func groupHelp(cmd *cobra.Command) {
	help := &helpFlag{group: config.CommonGroup}
	cmd.Flags().VarPF(help, "help", "h", "this help; with =all or =GROUP, of more flags").NoOptDefVal = "true"
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		w := cmd.OutOrStderr()
		fmt.Fprintf(w, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		for _, g := range config.Groups() {
			if help.group != g.Name && help.group != allGroups {
				continue
			}
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if config.GroupOf(f) == g.Name {
					flags.AddFlag(f)
				}
			})
			if !flags.HasFlags() {
				fmt.Fprintf(w, "\n%s has no flags of group %s.\n", cmd.CommandPath(), g.Name)
				continue
			}
			fmt.Fprintf(w, "\nFlags, group %s (%s):\n%s", g.Name, g.About, flags.FlagUsages())
		}
		if help.group != allGroups {
			fmt.Fprintf(w, "\nUse \"%s --help=all\" for all flags, --help=GROUP for those of %s.\n", cmd.CommandPath(), strings.Join(groupNames()[1:len(config.Groups())], ", "))
		}
		return nil
	})
}

// rejectUnknownCommand refuses args[0], which is no subcommand of cmd.
func rejectUnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	// The command path without the program's name, as in "config show".
	of := strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
	whole := func(name string) string { return strings.TrimSpace(of + " " + name) }
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	hint := ""
	if best := config.ClosestName(args[0], names); best != "" {
		hint = fmt.Sprintf("did you mean %q?", whole(best))
	}
	return commandLineError(cmd, fmt.Sprintf("unknown command %q", whole(args[0])), hint)
}

// commandLineError returns an error of the command line: what is wrong, a suggestion ("" if there is none),
// and where the help is.
func commandLineError(cmd *cobra.Command, what, hint string) error {
	help := fmt.Sprintf("see \"%s --help\"", cmd.CommandPath())
	switch {
	case strings.HasSuffix(hint, "?"):
		what += "; " + hint + " S" + help[1:]
	case hint != "":
		what += "; " + hint + ". S" + help[1:]
	default:
		what += "; " + help
	}
	return usageError(errors.New(what))
}

// explainFlagError explains why flags could not be parsed.
func explainFlagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok && invalid.GetFlag().Name == "help" {
		return commandLineError(cmd, "--help: "+invalid.Unwrap().Error(), "")
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return commandLineError(cmd, config.ExplainFlagError(err).Error(), "")
	}
	name, given := unknown.GetSpecifiedName(), "--"+unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, _, _ = strings.Cut(short, "=")
		given = "-" + name
	}
	return commandLineError(cmd, fmt.Sprintf("unknown flag: %s", given), suggestFlag(cmd, name, strings.HasPrefix(given, "--")))
}

// minFlagPrefix is the minimum length of a prefix for which a flag is suggested.
const minFlagPrefix = 3

// suggestFlag suggests what was meant by a flag which cmd lacks; "" if nothing is similar.
func suggestFlag(cmd *cobra.Command, name string, long bool) string {
	if has := commandsWithFlag(cmd.Root(), name); long && len(has) > 0 {
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
	best := config.ClosestName(name, names)
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name) }); i >= 0 && len(name) >= minFlagPrefix {
		best = names[i] // a prefix of a flag was given
	}
	switch {
	case best != "":
		return fmt.Sprintf("did you mean --%s?", best)
	case !long:
		return "flags have two dashes"
	}
	return ""
}

// commandsWithFlag lists the commands which have a flag, except commands which take the settings of all other
// commands.
func commandsWithFlag(root *cobra.Command, flag string) (names []string) {
	for _, cmd := range root.Commands() {
		if cmd.Flags().Lookup(flag) != nil && cmd.Flags().Lookup("for") == nil {
			names = append(names, cmd.Name())
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return commandRank(a) - commandRank(b) })
	return names
}

// commandRank orders the roles first, in the order of config.Commands.
func commandRank(command string) int {
	if i := slices.Index(config.Commands(), config.Command(command)); i >= 0 {
		return i
	}
	return len(config.Commands())
}

// checkArgs turns a check of the arguments into one whose error is a usage error.
//
// The value of a flag with an optional value must follow an "=". Written as a separate word, it becomes an
// argument too many.
func checkArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		if name := flagWithoutValue(cmd); name != "" {
			return usageError(fmt.Errorf("%q is no argument of \"%s\": a value of --%s follows an =, as in --%s=%s", args[0], cmd.CommandPath(), name, name, args[0]))
		}
		return commandLineError(cmd, err.Error(), "")
	}
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q is too much: \"%s\" takes no arguments", args[0], cmd.CommandPath())
	}
	return nil
}

// flagWithoutValue returns the name of a flag which was given without its optional value; "" if there is
// none.
func flagWithoutValue(cmd *cobra.Command) (name string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal && f.Value.Type() != "bool" {
			name = f.Name
		}
	})
	return name
}
