defmodule ExternalService.VirtualClock do
  @moduledoc """
  A clock that moves only when told to, so that tests of waits, windows and resets take no time.

      iex> clock = ExternalService.VirtualClock.new()
      iex> options = [circuit_breaker: [tolerate: 0, reset: 60_000], retry: [max_attempts: 1]]
      iex> ExternalService.start(:mail, [clock: clock] ++ options)
      iex> {:error, _error} = ExternalService.call(:mail, fn -> :retry end)
      iex> ExternalService.state(:mail)
      :open
      iex> ExternalService.VirtualClock.advance(clock, 60_000)
      iex> ExternalService.state(:mail)
      :closed

  A service started with `clock: clock` takes its times from it: the breaker, the retry delays and every wait. A wait
  does not sleep but moves the clock to its end. Several services may share a clock, and any process may use it.

  Jitter and fault injection draw from the clock's own stream of random numbers, so a test sees the same delays each
  time it runs.
  """

  alias ExternalService.Native

  # The last reading that the core's clock can have.
  @end_of_time 0x7FFF_FFFF_FFFF_FFFF

  @enforce_keys [:handle]
  defstruct [:handle]

  @opaque t :: %__MODULE__{handle: reference()}

  @doc """
  Returns a new clock that stands at 0.

  `seed`, an integer from 0 to 2^64 - 1, chooses the stream of random numbers.
  """
  @spec new(non_neg_integer()) :: t()
  def new(seed \\ 0), do: %__MODULE__{handle: Native.clock_new(seed)}

  @doc "Returns the clock's time in milliseconds, rounded down."
  @spec now(t()) :: integer()
  def now(%__MODULE__{handle: handle}), do: handle |> Native.clock_now() |> Integer.floor_div(1_000_000)

  @doc "Moves the clock forward by `ms` milliseconds."
  @spec advance(t(), non_neg_integer()) :: :ok
  def advance(%__MODULE__{handle: handle}, ms) when is_integer(ms) and ms >= 0,
    do: Native.clock_advance(handle, ms * 1_000_000)

  # The core's clock; `nil`, the machine's own, where there is no virtual one.
  @doc false
  @spec handle(t() | nil) :: Native.clock() | nil
  def handle(nil), do: nil
  def handle(%__MODULE__{handle: handle}), do: handle

  # A wait of a service on this clock. Waits that begin together end together: each moves the clock to its own end.
  @doc false
  @spec wait(t(), non_neg_integer()) :: :ok
  def wait(%__MODULE__{handle: handle}, ms),
    do: Native.clock_wait_until(handle, min(Native.clock_now(handle) + ms * 1_000_000, @end_of_time))
end
