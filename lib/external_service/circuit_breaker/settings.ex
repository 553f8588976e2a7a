defmodule ExternalService.CircuitBreaker.Settings do
  # From the options a service was given for its breaker to those its backend is installed with.
  @moduledoc false

  require Logger

  alias ExternalService.{Native, Options, Unit, Validation}

  @rates [:failure_rate, :slow_call, :slow_rate]
  @rules [:consecutive | @rates]

  # The longest time that the core's clock counts. Rounded up to a millisecond it would be longer than that.
  @longest_ms div(0x7FFF_FFFF_FFFF_FFFF, 1_000_000)

  @doc "Returns the options of the breaker of service `name`, or raises if they contradict each other."
  @spec resolve(term(), keyword(), Native.schedule()) :: keyword()
  def resolve(name, options, schedule) do
    settings = options[:circuit_breaker] |> merge_backend() |> Keyword.merge(Keyword.take(options, [:clock]))
    settings = Keyword.put_new(settings, :tolerate, if(given?(settings, @rules), do: :infinity, else: 10))
    check!(name, settings)
    Keyword.put(settings, :within, within(settings, schedule))
  end

  @doc "Returns whether these options describe a breaker at all."
  @spec any?(keyword()) :: boolean()
  def any?(settings), do: settings[:tolerate] != :infinity or given?(settings, @rules)

  @doc "Returns whether these options have calls counted."
  @spec rates?(keyword()) :: boolean()
  def rates?(settings), do: given?(settings, @rates)

  @doc "Returns the share of slow calls that opens, or `nil` where no call is slow."
  @spec slow_rate(keyword()) :: number() | nil
  def slow_rate(settings), do: if(settings[:slow_call], do: settings[:slow_rate] || 0.5)

  @doc "Returns how probes go out while half-open, or `nil` where they do not."
  @spec half_open(keyword()) ::
          %{probes: pos_integer(), successes: pos_integer(), lease: pos_integer() | :infinity} | nil
  def half_open(settings) do
    case settings[:half_open] do
      off when off in [nil, false] -> nil
      true -> half_open([], settings[:reset])
      options -> half_open(options, settings[:reset])
    end
  end

  defp half_open(options, reset) do
    probes = Keyword.get(options, :probes, 1)
    # Without an open time there is nothing to measure a lease by; who dies gives its probe back without one.
    lease = Keyword.get(options, :lease, if(reset == 0, do: :infinity, else: reset))
    %{probes: probes, successes: Keyword.get(options, :successes, probes), lease: lease}
  end

  @doc "Returns the backend and its own options."
  @spec backend(keyword()) :: {module(), keyword()}
  def backend(settings) do
    case settings[:backend] do
      {module, own} -> {module, own}
      module -> {module, []}
    end
  end

  defp given?(settings, options), do: Enum.any?(options, &(settings[&1] != nil))

  # The options of a backend given as `{module, options}` override the shared ones, so they are checked as such.
  defp merge_backend(settings) do
    {module, own} = backend(settings)
    {shared, own} = Keyword.split(own, Keyword.keys(Options.schema(:circuit_breaker)) -- [:backend])
    Validation.check_given!(:circuit_breaker, shared, [:circuit_breaker, :backend])
    Keyword.merge(settings, [backend: {module, own}] ++ shared)
  end

  defp within(settings, schedule) do
    case {settings[:within], settings[:tolerate]} do
      {:auto, :infinity} -> 10_000
      {:auto, tolerate} -> schedule |> Native.trip_within(tolerate, settings[:melt]) |> Unit.ms() |> min(@longest_ms)
      {within, _tolerate} -> within
    end
  end

  defp check!(name, settings) do
    if settings[:fault_injection] && not any?(settings),
      do:
        contradict!(
          name,
          "`tolerate: :infinity` installs no breaker, so there is none for `:fault_injection` to inject faults with"
        )

    if settings[:slow_rate] && !settings[:slow_call],
      do: contradict!(name, "`:slow_rate` is a share of slow calls, and without a `:slow_call` there are none")

    max = settings[:reset_backoff][:max]

    if max && max < settings[:reset],
      do:
        contradict!(
          name,
          "`reset_backoff: [max: #{max}]` is shorter than the first open time, `reset: #{settings[:reset]}`"
        )

    case {given?(settings, @rates), settings[:window], settings[:min_calls]} do
      {true, {:calls, n}, min} when min > n ->
        contradict!(name, "`min_calls: #{min}` can never be reached in a `window: {:calls, #{n}}`")

      _reachable ->
        :ok
    end
  end

  @spec contradict!(term(), String.t()) :: no_return()
  defp contradict!(name, how),
    do: raise(ArgumentError, "the circuit breaker options of #{inspect(name)} contradict each other: " <> how)

  @doc "Tells the log that the service with these settings refuses attempts on purpose, if it does."
  @spec warn_of_faults(term(), keyword()) :: :ok
  def warn_of_faults(name, settings) do
    if share = settings[:fault_injection] do
      Logger.warning(
        "[ExternalService] Service #{inspect(name)} refuses #{Float.round(share * 100.0, 4)} % of its attempts on purpose (:fault_injection)."
      )
    end

    :ok
  end
end
