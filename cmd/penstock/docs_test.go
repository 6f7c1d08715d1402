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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/internal/config"
)

// TestProductDocument: the documented list of features matches the features of this version.
func TestProductDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/product.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := names(t, string(text), "Commands", "`up` starts all")
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
	same(t, "commands", commands, have)

	var ofUp, others []string
	for _, row := range settingRows(t) {
		if slices.Contains(row.on, config.Up) {
			ofUp = append(ofUp, row.key)
		} else {
			others = append(others, row.key)
		}
	}
	settings := names(t, string(text), "Settings, each a flag of `up`, a key in `penstock.yaml` and a variable", "`kv-cache-block-size` sets")
	same(t, "settings of up", settings, ofUp)
	settings = names(t, string(text), "Settings that `up` has not, because they are about several processes", "[settings.md]")
	same(t, "settings of the others", settings, others)
}

// TestFlagsAreDocumented: the pages of replay and bench contain all of their flags, and settings.md the
// settings which replay shares.
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

// settingRow is a setting with its commands.
type settingRow struct {
	key, help string
	on        []config.Command
	def       map[config.Command]any
}

// settingRows returns all settings, and checks that each is a flag of exactly its commands.
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
				row = &settingRow{key: s.Key, help: flag.Usage, def: map[config.Command]any{}}
				rows[s.Key] = row
				order = append(order, row)
			}
			if s.Key == "nats-listen" {
				s.Value = "" // without one, or nats, the others cannot be loaded
			}
			row.on = append(row.on, command)
			row.def[command] = s.Value
		}
	}
	return order
}

var rewrite = flag.Bool("rewrite", false, "write docs/settings.md anew")

// TestSettingsDocument: docs/settings.md contains the table of the settings.
func TestSettingsDocument(t *testing.T) {
	const path = "../../docs/settings.md"
	var b strings.Builder
	b.WriteString(`# Settings

Each is a flag (` + "`--http-addr`), a key in `penstock.yaml` (`http-addr`) and a variable (`PENSTOCK_HTTP_ADDR`" + `), each stronger than the one
before it in the order file, variable, flag. ` + "`penstock config show --for COMMAND`" + ` prints the effective values and where they come from. A file or a
variable may hold settings that the command has not; they have no effect on it. ` + "`DYN_REQUEST_PLANE`" + ` is read as ` + "`request-plane`, `DYNAMO_MM_TRANSFER` as `mm-transfer`" + `.

| setting | commands | default | meaning |
|---|---|---|---|
`)
	for _, row := range settingRows(t) {
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
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", row.key, strings.Join(commands, ", "), strings.Join(defaults, " or "), strings.ReplaceAll(row.help, "|", "\\|"))
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != b.String() {
		t.Error("docs/settings.md is not what the settings are: go test ./cmd/penstock -run Settings -rewrite writes it")
	}
}

// names returns the words in backquotes between the heading of a list item and the given text.
func names(t *testing.T, text, item, end string) []string {
	t.Helper()
	_, rest, ok := strings.Cut(text, "\n* "+item+": ")
	list, _, ends := strings.Cut(rest, end)
	if !ok || !ends {
		t.Fatalf("docs/product.md has no item %q that ends at %q", item, end)
	}
	var out []string
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(list, -1) {
		out = append(out, m[1])
	}
	return out
}

func same(t *testing.T, what string, documented, have []string) {
	t.Helper()
	slices.Sort(documented)
	slices.Sort(have)
	if !slices.Equal(documented, have) {
		t.Errorf("%s in docs/product.md: %v\nin this version: %v", what, documented, have)
	}
}
