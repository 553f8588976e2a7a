defmodule ExternalService.Configuration do
  # What follows from the options of a service: the figures that the explanation of it and the checks speak of. The core
  # works them out, as it does for a call; here they only stand side by side. All times are in milliseconds.
  @moduledoc false

  alias ExternalService.CircuitBreaker.Settings
  alias ExternalService.{Native, RetryOptions, Unit, Validation}

  # Longer plans are cut by the core.
  @plan_max 1_000

  defstruct [:name, :options, :retry, :window, :attempts, :delays, :breaker, :calls, :narrowest, :sized]

  @typedoc """
  Of a retry: the `window` that a call which fails throughout spends between its `attempts`, and the `delays` it
  consists of, jitter left out. Of a breaker that counts failures: how many such
  `calls` open it, the `narrowest` window that holds their failures, and the one that `:auto` has `sized`.
  """
  @type t :: %__MODULE__{
          name: ExternalService.service(),
          options: keyword(),
          retry: RetryOptions.t() | nil,
          window: non_neg_integer() | :infinity | nil,
          attempts: pos_integer() | :infinity | nil,
          delays: [non_neg_integer()] | nil,
          breaker: keyword() | nil,
          calls: non_neg_integer() | nil,
          narrowest: non_neg_integer() | :infinity | nil,
          sized: pos_integer() | nil
        }

  @doc "Returns the figures of a service with these options, its resolved retry options and breaker settings."
  @spec new(ExternalService.service(), keyword(), RetryOptions.t(), keyword()) :: t()
  def new(name, options, retry, breaker) do
    %__MODULE__{name: name, options: options} |> retrying(retry) |> tripping(breaker)
  end

  @doc "Returns what can be read of options that nobody has checked: what can not is `nil`."
  @spec read(ExternalService.service(), term()) :: t()
  def read(name, options) do
    options = if Keyword.keyword?(options), do: options, else: []
    unread = %__MODULE__{name: name, options: options}
    figures = readable(unread, fn -> retrying(unread, RetryOptions.new(options[:retry] || [])) end)
    readable(figures, fn -> tripping(figures, breaker(name, options, figures.retry)) end)
  end

  @doc "Returns a group of options, or none where it is not one."
  @spec group(t(), atom()) :: keyword()
  def group(%__MODULE__{options: options}, name) do
    case options[name] do
      %_{} = struct -> struct |> Map.from_struct() |> Map.to_list()
      group -> if Keyword.keyword?(group), do: group, else: []
    end
  end

  defp readable(otherwise, read) do
    read.()
  catch
    _unreadable, _reason -> otherwise
  end

  defp breaker(name, options, %RetryOptions{} = retry) do
    settings = Validation.validate!(:circuit_breaker, options[:circuit_breaker] || [])
    Settings.resolve(name, [circuit_breaker: settings], schedule(retry))
  end

  defp retrying(figures, retry) do
    schedule = schedule(retry)
    delays = schedule |> Native.backoff_plan(@plan_max) |> Enum.map(&Unit.ms/1)
    attempts = if length(delays) < @plan_max, do: length(delays) + 1, else: retry.max_attempts
    window = schedule |> Native.backoff_window() |> Unit.ms()
    %{figures | retry: retry, window: window, attempts: attempts, delays: delays}
  end

  defp schedule(retry), do: retry |> RetryOptions.sampled() |> RetryOptions.schedule()

  defp tripping(figures, breaker) do
    figures = %{figures | breaker: breaker}
    if is_integer(breaker[:tolerate]), do: sizing(figures), else: figures
  end

  defp sizing(%{retry: retry, breaker: breaker} = figures) do
    arguments = [schedule(retry), breaker[:tolerate], breaker[:melt]]
    {calls, narrowest} = apply(Native, :trip_narrowest, arguments)
    sized = apply(Native, :trip_within, arguments)
    %{figures | calls: calls, narrowest: Unit.ms(narrowest), sized: Unit.ms(sized)}
  end
end
