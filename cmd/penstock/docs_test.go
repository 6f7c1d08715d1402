package main

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/config"
)

// TestCommandsDocument checks that the table of docs/commands.md lists exactly the
// commands of the binary.
func TestCommandsDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## All commands\n")
	table, _, ends := strings.Cut(rest, "\n## ")
	if !found || !ends {
		t.Fatal("docs/commands.md has no section \"All commands\" before another one")
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
		documented = append(documented, m[1])
	}
	var have []string
	var walk func(prefix string, c *cobra.Command)
	walk = func(prefix string, c *cobra.Command) {
		for _, sub := range c.Commands() {
			name := prefix + sub.Name()
			if sub.HasSubCommands() {
				walk(name+" ", sub)
				if sub.LocalNonPersistentFlags().HasFlags() { // it does something itself
					have = append(have, name)
				}
				continue
			}
			have = append(have, name)
		}
	}
	walk("", newRootCommand())
	slices.Sort(documented)
	slices.Sort(have)
	if !slices.Equal(documented, have) {
		t.Errorf("commands in docs/commands.md: %v\nin this version: %v", documented, have)
	}
}

// TestFlagsAreDocumented checks that the pages of replay and bench have all of their flags,
// and that settings.md has the settings which replay shares.
func TestFlagsAreDocumented(t *testing.T) {
	shared, err := os.ReadFile("../../docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*cobra.Command{newReplayCommand(), newBenchCommand()} {
		page, err := os.ReadFile("../../docs/" + cmd.Name() + ".md")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			said := regexp.MustCompile("--" + f.Name + `\b`).Match(page)
			if strings.HasPrefix(f.Name, "sim-") {
				said = strings.Contains(string(shared), "`"+f.Name+"`")
			}
			if !said {
				t.Errorf("%s --%s is not documented", cmd.Name(), f.Name)
			}
		})
	}
}

// TestSimFlagsDocument: docs/sim-server.md has each flag of sim which is no setting, and no other flag.
func TestSimFlagsDocument(t *testing.T) {
	page, err := os.ReadFile("../../docs/sim-server.md")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := os.ReadFile("../../docs/settings.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| flag | default | meaning |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for line := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		for name := range strings.SplitSeq(cell, ", ") {
			documented[strings.Trim(name, "`-")] = true
		}
	}
	newSimCommand().Flags().VisitAll(func(f *pflag.Flag) {
		isSetting := len(f.Annotations) > 0 && strings.Contains(string(settings), "* **`"+f.Name+"`**")
		if !documented[f.Name] && !isSetting {
			t.Errorf("sim --%s is neither in the table nor a setting", f.Name)
		}
		delete(documented, f.Name)
	})
	for name := range documented {
		t.Errorf("sim has no flag --%s", name)
	}
}

// settingRow is a setting with the commands which have it.
type settingRow struct {
	key, group, help string
	on               []config.Command
	def              map[config.Command]any
}

// settingRows returns all settings, and checks that each is a flag of exactly the
// commands which have it.
func settingRows(t *testing.T) []*settingRow {
	t.Helper()
	rows := map[string]*settingRow{}
	var order []*settingRow
	for _, command := range config.Commands() {
		cfg, err := config.Load("", []string{"PENSTOCK_NATS_LISTEN=127.0.0.1:0"}, config.NoFlags(command))
		if err != nil {
			t.Fatal(err)
		}
		cmd, _, err := newRootCommand().Find([]string{string(command)})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range cfg.Settings() {
			flag := cmd.Flags().Lookup(s.Key)
			if flag == nil {
				t.Fatalf("%s has no flag --%s", command, s.Key)
			}
			row := rows[s.Key]
			if row == nil {
				row = &settingRow{key: s.Key, group: config.GroupOf(flag), help: flag.Usage, def: map[config.Command]any{}}
				rows[s.Key] = row
				order = append(order, row)
			}
			if s.Key == "nats-listen" {
				s.Value = "" // the commands other than up need it, or nats, to load
			}
			row.on = append(row.on, command)
			row.def[command] = s.Value
		}
	}
	return order
}

var rewrite = flag.Bool("rewrite", false, "write docs/settings.md from the settings")

// TestSettingsDocument checks that docs/settings.md is what the settings say.
func TestSettingsDocument(t *testing.T) {
	const path = "../../docs/settings.md"
	want := settingsDocument(t)
	if *rewrite {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Error("docs/settings.md is not what the settings say: go test ./cmd/penstock -run Settings -rewrite writes it")
	}
	for i, line := range strings.Split(want, "\n") {
		if n := utf8.RuneCountInString(line); n > 120 {
			t.Errorf("docs/settings.md:%d has %d characters, at most 120 are allowed", i+1, n)
		}
	}
}

// settingsDocument returns the content of docs/settings.md: a section for each group, an
// item for each setting.
func settingsDocument(t *testing.T) string {
	t.Helper()
	items := map[string]*strings.Builder{}
	for _, g := range config.Groups() {
		items[g.Name] = &strings.Builder{}
	}
	for _, row := range settingRows(t) {
		if items[row.group] == nil {
			t.Errorf("setting %s is in group %q, which config.Groups does not list", row.key, row.group)
			continue
		}
		items[row.group].WriteString(wrap("* ", "  ", row.String()))
	}
	var b strings.Builder
	b.WriteString(`# Settings

A setting is a flag (` + "`--http-addr`), a key in `penstock.yaml` (`http-addr`) and a variable (`PENSTOCK_HTTP_ADDR`" + `). A
variable overrides the file, and a flag overrides both. ` + "`penstock config show --for COMMAND`" + ` prints the effective values
and their origin. A file or a variable may hold settings which the command does not have; they have no effect on it.
` + "`DYN_REQUEST_PLANE` is read as `request-plane`, `DYNAMO_MM_TRANSFER` as `mm-transfer`, `DYN_LOG` as `log-level`," + `
` + "`DYN_MULTIMODAL_EMBEDDING_CACHE_GB` as `embedding-cache-capacity-gb`, `DYNAMO_DISABLE_NIXL_MM=1` as `mm-transfer=off`" + `.
Other variables ` + "`DYN_…` and `DYNAMO_…`" + ` have no effect; the log names them once.

The pages of ` + "`penstock COMMAND --help`" + ` have the same groups: it shows the common settings, ` + "`--help=all`" + ` all of them, and
` + "`--help=router`" + ` those of one group.

Each item has the setting, the commands which have it, its default and its meaning. Where commands have different
defaults, the item lists each. A test generates this page from the settings.
`)
	for _, g := range config.Groups() {
		fmt.Fprintf(&b, "\n## %s\n\n%s.", strings.ToUpper(g.Name[:1])+g.Name[1:], g.About)
		if g.Page != "" {
			fmt.Fprintf(&b, " [%s](%s) explains them.", g.Page, g.Page)
		}
		fmt.Fprintf(&b, "\n\n%s", items[g.Name])
	}
	return b.String()
}

// String returns the setting as an item of docs/settings.md, on one line.
func (row *settingRow) String() string {
	var commands, defaults []string
	for _, c := range row.on {
		commands = append(commands, string(c))
		value := fmt.Sprint(row.def[c])
		if list := reflect.ValueOf(row.def[c]); list.Kind() == reflect.Slice {
			value = strings.ReplaceAll(strings.Trim(value, "[]"), " ", ",")
		}
		if value == "" {
			value = "none"
		} else {
			value = "`" + value + "`"
		}
		if !slices.Contains(defaults, value) {
			defaults = append(defaults, value)
		}
	}
	return fmt.Sprintf("**`%s`** (%s; default %s): %s", row.key, strings.Join(commands, ", "), strings.Join(defaults, " or "), row.help)
}

// wrap returns text in lines of at most 116 characters, as far as its words allow, the first
// after prefix and the others after indent.
func wrap(prefix, indent, text string) string {
	var b strings.Builder
	line := prefix
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= 116:
			line += " " + word
		default:
			b.WriteString(line + "\n")
			line = indent + word
		}
	}
	b.WriteString(line + "\n")
	return b.String()
}
