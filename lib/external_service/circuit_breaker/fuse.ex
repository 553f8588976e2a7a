defmodule ExternalService.CircuitBreaker.Fuse do
  @moduledoc """
  The name that the default `:backend` had while it was built on the `:fuse` library.

      iex> ExternalService.start(:lamp, circuit_breaker: [tolerate: 0, backend: ExternalService.CircuitBreaker.Fuse])
      iex> {:error, _error} = ExternalService.call(:lamp, [max_attempts: 1], fn -> :retry end)
      iex> ExternalService.state(:lamp)
      :open

  It is for code that names it, or builds a backend of its own on its functions: every one of them is that of
  `ExternalService.CircuitBreaker.Local`, and takes its options. `:fuse` is not used, so `:fuse.ask/2` and its like know
  nothing of these breakers.
  """

  @behaviour ExternalService.CircuitBreaker

  alias ExternalService.CircuitBreaker.Local

  @type strategy ::
          {:standard, tolerate :: non_neg_integer() | :infinity, within :: pos_integer()}
          | {:fault_injection, rate :: number(), tolerate :: non_neg_integer() | :infinity, within :: pos_integer()}

  @opaque config :: {strategy(), reference()}

  @doc """
  Returns how breaker options were written for `:fuse`.

      iex> ExternalService.CircuitBreaker.Fuse.strategy(tolerate: 5, within: 1_000, reset: 2_000)
      {:standard, 5, 1000}
      iex> ExternalService.CircuitBreaker.Fuse.strategy(tolerate: 5, within: 1_000, fault_injection: 0.1)
      {:fault_injection, 0.1, 5, 1000}
  """
  @spec strategy(keyword()) :: strategy()
  def strategy(options) do
    case options[:fault_injection] do
      nil -> {:standard, options[:tolerate], options[:within]}
      rate -> {:fault_injection, rate, options[:tolerate], options[:within]}
    end
  end

  @doc """
  Returns how many failures a breaker tolerates, given what `install/2` returned for it.

      iex> options = [tolerate: 5, within: 1_000, reset: 2_000]
      iex> {:ok, config} = ExternalService.CircuitBreaker.Fuse.install(:candle, options)
      iex> ExternalService.CircuitBreaker.Fuse.tolerate(config)
      5
  """
  @spec tolerate(config()) :: non_neg_integer() | :infinity
  def tolerate({{:standard, tolerate, _within}, _breaker}), do: tolerate
  def tolerate({{:fault_injection, _rate, tolerate, _within}, _breaker}), do: tolerate

  @impl true
  def install(service, options), do: {:ok, maker(options).(service)}

  @impl true
  def maker(options) do
    {strategy, make} = {strategy(options), Local.maker(options)}
    fn service -> {strategy, make.(service)} end
  end

  @impl true
  def watch(options), do: Local.watch(options)

  @impl true
  def ask(service, {_strategy, breaker}), do: Local.ask(service, breaker)

  @impl true
  def admit(service, {_strategy, breaker}), do: Local.admit(service, breaker)

  @impl true
  def report(service, {_strategy, breaker}, permit, outcome, duration),
    do: Local.report(service, breaker, permit, outcome, duration)

  @impl true
  def melt(service, {_strategy, breaker}), do: Local.melt(service, breaker)

  @impl true
  def reset(service, {_strategy, breaker}), do: Local.reset(service, breaker)

  @impl true
  def remove(service, {_strategy, breaker}), do: Local.remove(service, breaker)

  @impl true
  def look(service, {_strategy, breaker}), do: Local.look(service, breaker)

  @impl true
  def open(service, {_strategy, breaker}, options), do: Local.open(service, breaker, options)

  @impl true
  def close(service, {_strategy, breaker}), do: Local.close(service, breaker)

  @impl true
  def bypass(service, {_strategy, breaker}), do: Local.bypass(service, breaker)

  @impl true
  def idle?(service, {_strategy, breaker}), do: Local.idle?(service, breaker)

  @impl true
  def inherit(service, {_strategy, breaker}, {_old_strategy, old}), do: Local.inherit(service, breaker, old)

  @impl true
  def retire(service, {_strategy, breaker}), do: Local.retire(service, breaker)
end
