defmodule Demo.Scoreboard do
  @moduledoc """
  Counts what happens in each phase, from the library's telemetry.

    * `:ok`, `:refused`, `:failed` - calls that ended well, were refused by the open breaker, ran out of attempts
    * `:retried` - attempts that failed and asked for a retry
    * `:attempts` - times a client reached for the server; the clients count these themselves
    * `:opened`, `:closed` - changes of the breaker
  """

  alias ExternalService.{CircuitBreakerOpen, RetriesExhausted, Telemetry}

  @phases [:healthy, :failing, :dead, :back, :over]
  @kinds [:ok, :retried, :refused, :failed, :attempts, :opened, :closed]
  @events [
    [:external_service, :call, :stop],
    [:external_service, :call, :retry],
    [:external_service, :circuit_breaker, :opened],
    [:external_service, :circuit_breaker, :closed]
  ]

  # Places in `marks`. Times are milliseconds since the scoreboard was made, 0 for not yet.
  @phase 1
  @returned_at 2
  @first_good_at 3

  defstruct [:counts, :marks, :started_at]

  @doc "Makes a scoreboard that listens to the library."
  def start do
    board = %__MODULE__{
      counts: :counters.new(length(@phases) * length(@kinds), []),
      marks: :atomics.new(3, []),
      started_at: System.monotonic_time(:millisecond)
    }

    :ok = Telemetry.attach_many(__MODULE__, @events, &__MODULE__.handle_event/4, board)
    board
  end

  @doc "Stops listening; the counts stay."
  def stop, do: Telemetry.detach(__MODULE__)

  @doc "Begins a phase: what happens from now on counts for it."
  def enter(board, phase) do
    if phase == :back, do: :atomics.put(board.marks, @returned_at, elapsed_ms(board))
    :atomics.put(board.marks, @phase, index(@phases, phase))
  end

  def phase(board), do: Enum.at(@phases, :atomics.get(board.marks, @phase))

  @doc "Counts one more of a kind."
  def count(board, kind), do: :counters.add(board.counts, place(phase(board), kind), 1)

  @doc "Returns how many of a kind there were in one phase."
  def count_of(board, phase, kind), do: :counters.get(board.counts, place(phase, kind))

  @doc "Returns how many of each kind there were in all phases."
  def totals(board) do
    for kind <- @kinds, into: %{} do
      {kind, Enum.sum(for phase <- @phases, do: count_of(board, phase, kind))}
    end
  end

  @doc "Returns the milliseconds since the scoreboard was made."
  def elapsed_ms(board), do: System.monotonic_time(:millisecond) - board.started_at

  @doc "Returns the milliseconds from the server's return to the first good call, nil if there was none."
  def recovery_ms(board) do
    case :atomics.get(board.marks, @first_good_at) do
      0 -> nil
      first_good_at -> first_good_at - :atomics.get(board.marks, @returned_at)
    end
  end

  @doc false
  def handle_event([_library, :call, :stop], _measurements, %{result: result}, board) do
    outcome = outcome(result)
    count(board, outcome)
    if outcome == :ok and phase(board) == :back, do: mark_first_good(board)
  end

  def handle_event([_library, :call, :retry], _, _, board), do: count(board, :retried)
  def handle_event([_library, :circuit_breaker, change], _, _, board), do: count(board, change)

  defp outcome({:error, %CircuitBreakerOpen{}}), do: :refused
  defp outcome({:error, %RetriesExhausted{}}), do: :failed
  defp outcome({:ok, _weather}), do: :ok

  # Only the first exchange finds a 0.
  defp mark_first_good(board),
    do: :atomics.compare_exchange(board.marks, @first_good_at, 0, elapsed_ms(board))

  defp place(phase, kind), do: index(@phases, phase) * length(@kinds) + index(@kinds, kind) + 1

  defp index(list, item), do: Enum.find_index(list, &(&1 == item))
end
