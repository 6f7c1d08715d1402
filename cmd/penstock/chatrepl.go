package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const chatHelp = `  /reset   begin a new conversation: what was said is not sent again
  /quit    leave (so does Ctrl-D)
  /help    show this
  Ctrl-C   stop the answer; again, or with no answer running twice, leave
  A line that ends in \ goes on in the next one; // at its beginning is a / of the message.
`

// runREPL asks what the user types until end of input, /quit, a second interrupt or the end of ctx. An error
// of one response is printed, and the conversation continues.
func (c *conversation) runREPL(ctx context.Context, in io.Reader, interrupts <-chan os.Signal) error {
	fmt.Fprintf(c.errs, "Talking to %s on %s. /help lists commands, Ctrl-D leaves.\n", printable(c.model), c.client.server)
	r := &repl{conversation: c, lines: readLines(in), interrupts: interrupts}
	for {
		text, ok := r.promptMessage(ctx)
		if !ok {
			return nil
		}
		switch strings.TrimSpace(text) {
		case "":
		case "/help":
			fmt.Fprint(c.errs, chatHelp)
		case "/reset":
			c.messages = c.initialMessages
			fmt.Fprintln(c.errs, "(a new conversation)")
		case "/quit", "/exit":
			return nil
		default:
			if err := r.answerMessage(ctx, text); err != nil {
				return err
			}
		}
		if r.quit || ctx.Err() != nil {
			return nil
		}
	}
}

// repl is a conversation on a terminal, with its input and its interrupts.
type repl struct {
	*conversation
	lines           <-chan string
	interrupts      <-chan os.Signal
	interruptedLast bool // the last input was an interrupt
	quit            bool // interrupted again while a response was being stopped
}

// readLines returns the lines of in, without line ends. The channel is closed at the end of in. A read of a
// terminal cannot be cancelled, so the goroutine lives as long as the process.
func readLines(in io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		r := bufio.NewScanner(in)
		r.Buffer(nil, maxMessageBytes)
		for r.Scan() {
			lines <- r.Text()
		}
	}()
	return lines
}

// promptMessage prompts for a message and returns it; ok is false if the user quits.
func (r *repl) promptMessage(ctx context.Context) (text string, ok bool) {
	prompt := ">>> "
	for {
		fmt.Fprint(r.errs, prompt)
		select {
		case line, ok := <-r.lines:
			r.interruptedLast = false
			if !ok {
				fmt.Fprintln(r.errs)
				return "", false
			}
			more, goesOn := strings.CutSuffix(line, `\`)
			if text += more; !goesOn {
				return text, true
			}
			text, prompt = text+"\n", "... "
		case <-r.interrupts:
			fmt.Fprintln(r.errs)
			if r.interruptedLast {
				return "", false
			}
			r.interruptedLast, text, prompt = true, "", ">>> "
			fmt.Fprintln(r.errs, "(Ctrl-C again or Ctrl-D leaves)")
		case <-ctx.Done():
			fmt.Fprintln(r.errs)
			return "", false
		}
	}
}

// answerMessage asks one question. The first interrupt stops the response. The error is that of standard
// output.
func (r *repl) answerMessage(ctx context.Context, text string) error {
	if command, rest, slash := strings.Cut(text, "/"); slash && command == "" {
		if !strings.HasPrefix(rest, "/") {
			fmt.Fprintf(r.errs, "%s is not a command: /help lists them, and // begins a message with /\n", printable(strings.Fields(text)[0]))
			return nil
		}
		text = rest
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	answered := make(chan error, 1)
	go func() { answered <- r.askQuestion(ctx, text) }()
	for {
		select {
		case <-r.interrupts:
			r.quit = r.interruptedLast
			r.interruptedLast = true
			stop()
			continue
		case err := <-answered:
			return r.reportError(err)
		}
	}
}

// reportError prints the error of a response. It returns an error only if the conversation cannot continue.
func (r *repl) reportError(err error) error {
	switch {
	case err == nil:
	case errors.Is(err, errInterrupted):
		fmt.Fprintln(r.errs, "(stopped)")
	case errors.Is(err, errOutput):
		return err
	default:
		fmt.Fprintf(r.errs, "penstock: %s\n", printableLines(err.Error()))
	}
	return nil
}
