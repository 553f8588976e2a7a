defmodule ExternalService.Deadline do
  @moduledoc """
  The time by which a piece of work has to be done, and what is left of it.

      iex> alias ExternalService.Deadline
      iex> Deadline.remaining()
      :infinity
      iex> Deadline.with_deadline(1_000, fn -> Deadline.remaining() in 900..1_000 end)
      true

  Work that has a deadline, and is made of calls, hands it down: a call inside takes the smaller of its own `deadline:` and
  what is left, its waits end when nothing is left, and a call for which nothing is left is skipped, with
  `ExternalService.DeadlineExceeded`, instead of working for somebody who has gone.

  A deadline belongs to the process that set it, and to the attempts of its calls. To take it elsewhere, hand over what
  is left:

      Task.async(Deadline.attach(fn -> ExternalService.call(:search, &search/0) end))
      :erpc.call(node, Deadline.attach(fn -> Warehouse.count() end))
      GenServer.call(server, request, Deadline.remaining())
      Client.get(url, headers: [{"x-deadline-ms", Deadline.to_header()}])

  It travels as time left and never as the reading of a clock, since two machines have two clocks; the time a message
  is under way is not counted.
  """

  alias ExternalService.{Native, Unit}

  # A deadline: the clock, `nil` being the machine's, when it is over, and of how many milliseconds it was.
  @typedoc false
  @type t :: {Native.clock() | nil, at :: integer(), ms :: non_neg_integer()}

  @longest_ms div(0x7FFF_FFFF_FFFF_FFFF, 1_000_000)

  @doc """
  Runs `fun` with at most `ms` milliseconds left, fewer if the process has fewer left already, and returns its result.

  It does not interrupt `fun`: calls inside see what is left.

      iex> alias ExternalService.Deadline
      iex> Deadline.with_deadline(50, fn -> Deadline.with_deadline(5_000, fn -> Deadline.remaining() <= 50 end) end)
      true
  """
  @spec with_deadline(non_neg_integer() | :infinity, (() -> result)) :: result when result: term()
  def with_deadline(ms, fun) when (ms == :infinity or (is_integer(ms) and ms >= 0)) and is_function(fun, 0),
    do: under(sooner(current(), ms, nil), fun)

  @doc "Returns the milliseconds that are left, rounded up, or `:infinity` without a deadline."
  @spec remaining() :: non_neg_integer() | :infinity
  def remaining, do: current() |> left_ns() |> Unit.ms()

  @doc """
  Returns whether nothing is left.

      iex> ExternalService.Deadline.with_deadline(0, &ExternalService.Deadline.expired?/0)
      true
  """
  @spec expired?() :: boolean()
  def expired?, do: left_ns(current()) == 0

  @doc """
  Returns a function like `fun`, of up to three arguments, that runs with what is left now, in whatever process or node.

      iex> alias ExternalService.Deadline
      iex> task = fn -> Deadline.attach(fn -> Deadline.remaining() <= 500 end) |> Task.async() |> Task.await() end
      iex> Deadline.with_deadline(500, task)
      true
  """
  @spec attach(fun) :: fun when fun: (... -> term())
  def attach(fun) when is_function(fun, 0) or is_function(fun, 1) or is_function(fun, 2) or is_function(fun, 3) do
    case current() do
      nil -> fun
      deadline -> carry(fun, left(deadline))
    end
  end

  defp carry(fun, left) when is_function(fun, 0), do: fn -> resume(left, fun) end
  defp carry(fun, left) when is_function(fun, 1), do: fn a -> resume(left, fn -> fun.(a) end) end
  defp carry(fun, left) when is_function(fun, 2), do: fn a, b -> resume(left, fn -> fun.(a, b) end) end
  defp carry(fun, left) when is_function(fun, 3), do: fn a, b, c -> resume(left, fn -> fun.(a, b, c) end) end

  # A virtual clock is known on the node that made it only.
  defp left({clock, _at, ms} = deadline), do: {left_ns(deadline), ms, node(), clock}

  defp resume({left_ns, ms, origin, clock}, fun) do
    clock = if origin == node(), do: clock
    under(earlier(current(), {clock, Native.clock_now(clock) + left_ns, ms}), fun)
  end

  @doc """
  Returns what is left in milliseconds as the value of a header, or `nil` without a deadline.

      iex> ExternalService.Deadline.with_deadline(0, &ExternalService.Deadline.to_header/0)
      "0"
  """
  @spec to_header() :: String.t() | nil
  def to_header do
    case remaining() do
      :infinity -> nil
      ms -> Integer.to_string(ms)
    end
  end

  @doc """
  Returns the milliseconds that a header of `to_header/0` says are left: for `with_deadline/2`.

      iex> ExternalService.Deadline.from_header("1500")
      {:ok, 1500}
      iex> ExternalService.Deadline.from_header("soon")
      :error
  """
  @spec from_header(binary()) :: {:ok, non_neg_integer()} | :error
  def from_header(header), do: Unit.parse(header)

  # What follows is the pipeline's.

  @doc false
  @spec current() :: t() | nil
  def current do
    case :erlang.get(__MODULE__) do
      :undefined -> nil
      deadline -> deadline
    end
  end

  # The deadline of a process that does the work of one with this deadline.
  @doc false
  @spec adopt(t() | nil) :: term()
  def adopt(nil), do: nil
  def adopt(deadline), do: Process.put(__MODULE__, deadline)

  # The one of `deadline`, and `ms` from now, that is over first.
  @doc false
  @spec sooner(t() | nil, non_neg_integer() | :infinity, Native.clock() | nil) :: t() | nil
  def sooner(deadline, :infinity, _clock), do: deadline

  def sooner(deadline, ms, clock) do
    ms = min(ms, @longest_ms)
    earlier(deadline, {clock, min(Native.clock_now(clock) + Unit.ns(ms), 0x7FFF_FFFF_FFFF_FFFF), ms})
  end

  defp earlier(nil, new), do: new
  defp earlier(old, new), do: if(left_ns(old) <= left_ns(new), do: old, else: new)

  @doc false
  @spec left_ns(t() | nil) :: non_neg_integer() | :infinity
  def left_ns(nil), do: :infinity
  def left_ns({clock, at, _ms}), do: max(at - Native.clock_now(clock), 0)

  @doc false
  @spec under(t() | nil, (() -> result)) :: result when result: term()
  def under(nil, fun), do: fun.()

  def under(deadline, fun) do
    before = Process.put(__MODULE__, deadline)

    try do
      fun.()
    after
      if before, do: Process.put(__MODULE__, before), else: Process.delete(__MODULE__)
    end
  end
end
