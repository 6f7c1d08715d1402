package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// maxMessageBytes bounds a message which chat reads from a pipe, and a response.
const maxMessageBytes = 32 << 20

type chatFlags struct {
	serverTarget
	model, system     string
	temperature, topP float64
	maxTokens         int
	seed              int64
	asJSON            bool
}

func newChatCommand() *cobra.Command {
	var f chatFlags
	cmd := &cobra.Command{
		Use:   "chat [TEXT]",
		Short: "Talk to a model: one question, or a conversation in the terminal",
		Long: `Talk to a model of a running Penstock, or of any other server of the OpenAI API. The
answer is written to standard output as it comes. After it, a line on standard error says
which worker served it, how many tokens of the prompt that worker had cached, and how long
it took. The model is offered no tools.

With TEXT there is one question and one answer. Without it, standard input is the question
if it is a pipe or a file; on a terminal a conversation begins, in which each message is
sent with those before it. There, /help lists commands, Ctrl-C stops an answer, and
Ctrl-D leaves.`,
		Example: `  penstock chat
  penstock chat "Where does the water go?"
  git diff | penstock chat --system "Review this change." --max-tokens 400
  penstock chat --server https://gpu1:8443 --ca ca.pem --model m --json "Hello"`,
		Args: checkArgs(requireOneText),
		RunE: func(cmd *cobra.Command, args []string) error { return f.runChat(cmd, args) },
	}
	addTargetFlags(cmd, &f.serverTarget)
	cmd.Flags().StringVar(&f.model, "model", "", "model to talk to; may be left out where there is only one")
	cmd.Flags().StringVar(&f.system, "system", "", "system message that the conversation begins with")
	cmd.Flags().Float64Var(&f.temperature, "temperature", 0, "sampling temperature, from 0 to 2; the model's default if not given")
	cmd.Flags().Float64Var(&f.topP, "top-p", 0, "nucleus sampling, from 0 to 1; the model's default if not given")
	cmd.Flags().IntVar(&f.maxTokens, "max-tokens", 0, "most tokens of an answer; the model's default if not given")
	cmd.Flags().Int64Var(&f.seed, "seed", 0, "seed of the sampling; drawn for each answer if not given")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object per answer once it is complete")
	return cmd
}

func (f *chatFlags) runChat(cmd *cobra.Command, args []string) error {
	in := cmd.InOrStdin()
	interactive := len(args) == 0 && isKeyboard(in)
	question := strings.Join(args, "")
	if len(args) == 0 && !interactive {
		var err error
		if question, err = readMessage(in); err != nil {
			return err
		}
	}
	if !interactive && strings.TrimSpace(question) == "" {
		return usageError(errors.New(`the message is empty: give one, as in penstock chat "Hello"`))
	}
	c, err := f.newConversation(cmd)
	switch {
	case err != nil:
		return err
	case interactive:
		return converseOnTerminal(cmd, c, in)
	}
	return c.askQuestion(cmd.Context(), question)
}

// converseOnTerminal runs a conversation in which an interrupt stops the current response, not the process.
func converseOnTerminal(cmd *cobra.Command, c *conversation, in io.Reader) error {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), syscall.SIGTERM)
	defer stop()
	return c.runREPL(ctx, in, interrupts)
}

// isKeyboard reports whether r is a terminal on which a person types.
func isKeyboard(r io.Reader) bool {
	file, ok := r.(*os.File)
	if !ok || !isTerminal(file) {
		return false
	}
	info, err := file.Stat()
	null, nullErr := os.Stat(os.DevNull)
	return err == nil && (nullErr != nil || !os.SameFile(info, null))
}

// readMessage reads all of r as one message.
func readMessage(r io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxMessageBytes+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("standard input: %w", err)
	case len(text) > maxMessageBytes:
		return "", usageError(fmt.Errorf("standard input is larger than %d bytes", maxMessageBytes))
	}
	return strings.TrimRight(string(text), "\n"), nil
}

// newConversation returns an empty conversation.
func (f *chatFlags) newConversation(cmd *cobra.Command) (*conversation, error) {
	f.noHeaderTimeout = true // the first token may take long for a long prompt
	client, err := f.newClient()
	if err != nil {
		return nil, err
	}
	if f.model == "" {
		if f.model, err = client.findOnlyModel(cmd.Context()); err != nil {
			return nil, err
		}
	}
	c := &conversation{client: client, model: f.model, out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), asJSON: f.asJSON, options: map[string]any{}}
	if f.system != "" {
		c.initialMessages = []chatMessage{{"system", f.system}}
		c.messages = c.initialMessages
	}
	for name, option := range map[string]struct {
		field string
		value any
	}{
		"temperature": {"temperature", f.temperature}, "top-p": {"top_p", f.topP},
		"max-tokens": {"max_completion_tokens", f.maxTokens}, "seed": {"seed", f.seed},
	} {
		if cmd.Flags().Changed(name) {
			c.options[option.field] = option.value
		}
	}
	return c, nil
}
